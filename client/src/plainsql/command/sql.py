"""`plainsql sql`: runs one statement, or several as one transaction.

Reads with JSON, NDJSON or CSV output are copied from the service as they arrive, in constant memory. Writes carry an
idempotency key, so they run exactly once.
"""

import argparse
import sys

from plainsql.client import Client, Transaction
from plainsql.command.tables import write_result
from plainsql.command.target import connect
from plainsql.command.terminal import paint, say
from plainsql.result import Result
from plainsql.statements import looks_like_a_read
from plainsql.transport.protocol import Options, StreamFormat


def run_sql(options: argparse.Namespace) -> int:
    statements = _statements(options)
    with connect(options) as db:
        if len(statements) > 1:
            _run_together(db, statements, options)
        elif options.output_format != "table" and looks_like_a_read(statements[0]) and not options.idempotency_key:
            _pass_on(db, statements[0], options)
        else:
            result = db.query_as_sent(statements[0], options.param, _call_options(options))
            write_result(result, options.output_format)
            say(summary(result))
    return 0


def summary(result: Result) -> str:
    """The line printed below a result."""
    rows = len(result) if result.columns else result.affected_rows
    counted = f"{result.command} {rows} {'row' if rows == 1 else 'rows'}"
    if not result.columns and not result.affected_rows:
        counted = result.command
    more = " (more available)" if result.truncated else ""
    return paint("dim", f"{counted}{more}, {result.total_us / 1000:.1f} ms")


def _call_options(options: argparse.Namespace) -> Options:
    return Options(
        max_rows=options.max_rows, read_only=options.read_only, idempotency_key=options.idempotency_key, as_sent=True
    )


def _statements(options: argparse.Namespace) -> list[str]:
    if options.file:
        with open(options.file, encoding="utf-8") as file:
            options.statements.append(file.read())
    if not options.statements:
        options.statements.append(sys.stdin.read())
    if len(options.statements) > 1 and options.param:
        raise ValueError("Parameters are allowed only with a single statement.")
    return list(options.statements)


def _run_together(db: Client, statements: list[str], options: argparse.Namespace) -> None:
    together = Transaction(db, _call_options(options), None)
    for sql in statements:
        together.add(sql)
    for result in together.run():
        write_result(result, options.output_format)
        say(summary(result))


def _pass_on(db: Client, sql: str, options: argparse.Namespace) -> None:
    stream_format = StreamFormat.CSV if options.output_format == "csv" else StreamFormat.OBJECTS
    out = sys.stdout.buffer
    limits = {"max_rows": options.max_rows, "read_only": options.read_only, "timeout_s": options.timeout}
    with db.stream_bytes(sql, *options.param, stream_format=stream_format, **limits) as rows:
        if options.output_format != "json":
            for chunk in rows:
                out.write(chunk)
            return
        before = b"[\n"
        for chunk in rows:
            out.write(before + chunk.rstrip(b"\n").replace(b"\n", b",\n"))
            before = b",\n"
        out.write(b"[\n]\n" if before == b"[\n" else b"\n]\n")
