"""`plainsql sql`: runs one statement, or several as one transaction, or each by itself.

Reads with JSON, NDJSON or CSV output are copied from the service as they arrive, in constant memory. Writes carry an
idempotency key, so they run exactly once.
"""

import argparse
import sys
from collections.abc import Iterator

from plainsql.client import Client, Transaction
from plainsql.command.failures import show_notices
from plainsql.command.readable import readable_duration
from plainsql.command.statements import all_statements, transaction_word
from plainsql.command.tables import write_result
from plainsql.command.target import connect
from plainsql.command.terminal import paint, say
from plainsql.result import Result
from plainsql.statements import looks_like_a_read
from plainsql.transport.protocol import Options, StreamFormat


def run_sql(options: argparse.Namespace) -> int:
    statements = _statements(options)
    with connect(options) as db:
        if len(statements) > 1 and not options.no_transaction:
            _run_together(db, statements, options)
        else:
            for sql in statements:
                _run_alone(db, sql, options)
    return 0


def _run_alone(db: Client, sql: str, options: argparse.Namespace) -> None:
    if options.output_format != "table" and looks_like_a_read(sql) and not options.idempotency_key:
        _pass_on(db, sql, options)
        return
    result = db.query_as_sent(sql, options.param, _call_options(options))
    show_notices(result.notices)
    write_result(result, options.output_format)
    say(summary(result))


def summary(result: Result, *, with_time: bool = True) -> str:
    """The line printed below a result."""
    rows = len(result) if result.columns else result.affected_rows
    counted = f"{result.command} {rows} {'row' if rows == 1 else 'rows'}"
    if not result.columns and not result.affected_rows:
        counted = result.command
    more = " (more available)" if result.truncated else ""
    time = f", {readable_duration(result.total_us)}" if with_time else ""
    return paint("dim", f"{counted}{more}{time}")


def _call_options(options: argparse.Namespace) -> Options:
    return Options(
        max_rows=options.max_rows, read_only=options.read_only, idempotency_key=options.idempotency_key, as_sent=True
    )


def _statements(options: argparse.Namespace) -> list[str]:
    """The statements of all arguments and of the file. BEGIN and COMMIT around them are left out: they are implied."""
    texts = list(options.statements)
    if options.file == "-":
        texts.append(sys.stdin.read())
    elif options.file:
        with open(options.file, encoding="utf-8") as file:
            texts.append(file.read())
    statements = [sql for text in texts or [sys.stdin.read()] for sql in all_statements(text)]
    if statements and not options.no_transaction and transaction_word(statements[0]) == "BEGIN":
        if transaction_word(statements[-1]) != "COMMIT" or len(statements) == 1:
            raise ValueError("The statements begin a transaction, but don't end with COMMIT.")
        statements = statements[1:-1]
    if not statements:
        raise ValueError("There is no statement.")
    if len(statements) > 1 and (options.param or (options.idempotency_key and options.no_transaction)):
        given = "Parameters are" if options.param else "An idempotency key is"
        raise ValueError(f"{given} allowed only with a single statement.")
    return statements


def _run_together(db: Client, statements: list[str], options: argparse.Namespace) -> None:
    together = Transaction(db, _call_options(options), None)
    for sql in statements:
        together.add(sql)
    done = together.run()
    for result in done:
        show_notices(result.notices)
        write_result(result, options.output_format)
        say(summary(result))
    show_notices(done.notices)


def _pass_on(db: Client, sql: str, options: argparse.Namespace) -> None:
    stream_format = StreamFormat.CSV if options.output_format == "csv" else StreamFormat.OBJECTS
    out = sys.stdout.buffer
    limits = {"max_rows": options.max_rows, "read_only": options.read_only, "timeout_s": options.timeout}
    with db.stream_bytes(sql, *options.param, stream_format=stream_format, **limits) as rows:
        chunks = rows if options.output_format != "json" else _as_array(rows)
        for chunk in chunks:
            out.write(chunk)
    show_notices(rows.notices)


def _as_array(rows: Iterator[bytes]) -> Iterator[bytes]:
    """NDJSON as one JSON array."""
    before = b"[\n"
    for chunk in rows:
        yield before + chunk.rstrip(b"\n").replace(b"\n", b",\n")
        before = b",\n"
    yield b"[\n]\n" if before == b"[\n" else b"\n]\n"
