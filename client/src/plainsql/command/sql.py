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
from plainsql.command.statements import all_statements, params_used, renumbered, transaction_word
from plainsql.command.tables import write_result
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.errors import ServiceError
from plainsql.result import Result
from plainsql.statements import looks_like_a_read
from plainsql.transport.protocol import Options, StreamFormat

_PARAM_HINT = "Give the values of $1, $2, … with -p, such as -p 'North' -p 7. Other arguments are statements."


def run_sql(options: argparse.Namespace) -> int:
    statements = _with_params(_statements(options), options.param)
    with connect(options) as db:
        try:
            if len(statements) > 1 and not options.no_transaction:
                _run_together(db, statements, options)
            else:
                for statement in statements:
                    _run_alone(db, *statement, options)
        except ServiceError as error:
            if error.code == "wrong_parameter_count" and not options.param:
                error.hint = _PARAM_HINT
            raise
    return 0


def _run_alone(db: Client, sql: str, params: list[str], options: argparse.Namespace) -> None:
    if options.output_format != "table" and looks_like_a_read(sql) and not options.idempotency_key:
        _pass_on(db, sql, params, options)
        return
    result = db.query_as_sent(sql, params, _call_options(options))
    show_notices(result.notices)
    write_result(result, options.output_format)
    say(summary(result), "dim")


def summary(result: Result, *, with_time: bool = True) -> str:
    """The line printed below a result."""
    rows = len(result) if result.columns else result.affected_rows
    counted = f"{result.command} {rows} {'row' if rows == 1 else 'rows'}"
    if not result.columns and not result.affected_rows:
        counted = result.command
    more = " (more available)" if result.truncated else ""
    time = f", {readable_duration(result.total_us)}" if with_time else ""
    return f"{counted}{more}{time}"


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
    if len(statements) > 1 and options.idempotency_key and options.no_transaction:
        raise ValueError("An idempotency key is allowed only with a single statement.")
    return statements


def _with_params(statements: list[str], params: list[str]) -> list[tuple[str, list[str]]]:
    """Each statement with its parameters. Several statements share the values: each gets those that it uses."""
    if len(statements) == 1 or not params:
        return [(sql, params) for sql in statements]
    used = {number for sql in statements for number in params_used(sql)}
    for number in range(1, len(params) + 1):
        if number not in used:
            raise ValueError(f"No statement uses ${number}, but -p gives it the value {params[number - 1]!r}.")
    if max(used) > len(params):
        raise ValueError(f"${max(used)} has no value. {_PARAM_HINT}")
    return [renumbered(sql, params) for sql in statements]


def _run_together(db: Client, statements: list[tuple[str, list[str]]], options: argparse.Namespace) -> None:
    together = Transaction(db, _call_options(options), None)
    for sql, params in statements:
        together.add(sql, *params)
    done = together.run()
    for result in done:
        show_notices(result.notices)
        write_result(result, options.output_format)
        say(summary(result), "dim")
    show_notices(done.notices)


def _pass_on(db: Client, sql: str, params: list[str], options: argparse.Namespace) -> None:
    stream_format = StreamFormat.CSV if options.output_format == "csv" else StreamFormat.OBJECTS
    out = sys.stdout.buffer
    limits = {"max_rows": options.max_rows, "read_only": options.read_only, "timeout_s": options.timeout}
    with db.stream_bytes(sql, *params, stream_format=stream_format, **limits) as rows:
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
