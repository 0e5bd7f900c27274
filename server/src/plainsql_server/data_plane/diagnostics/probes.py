"""Probes of the service's own features. Each uses the feature on temporary data, through the same code as requests.

A probe returns `supported=False` if the feature does not work as documented. If PostgreSQL is unavailable or no slot
became free in time, that says nothing about the feature, so the probe raises an error instead.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import LimitError, RequestError, ServiceError, StatementError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.result import Shape
from plainsql_server.data_plane.diagnostics.probe_context import Probe, ProbeContext, ProbeFinding, evidence_of
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.service_connections import ServiceConnection
from plainsql_server.data_plane.stream import Receiver
from plainsql_server.data_plane.transaction_request import TransactionStatement
from plainsql_server.engine.execution.execution import BEGIN
from plainsql_server.engine.execution.plan import Count, Expectation
from plainsql_server.engine.execution.records import Record

# How long to wait for a second connection while the first one is held.
_SECOND_TIMEOUT_MS = 2_000
_STREAMED_ROWS = 6
_ROW_EVERY_S = 0.02
_DEADLINE_MS = 100
# A statement may exceed its deadline by a second if it must be terminated.
_ENDED_WITHIN_US = 1_100_000
_RECORDED = "PLS02"


async def serializable_isolation(context: ProbeContext) -> ProbeFinding:
    """Provokes a write skew: both transactions see two doctors on call, then each takes a different one off. One of
    them must fail.
    """
    setup = (
        "create table {s}.doctors (id int primary key, on_call bool not null)",
        "insert into {s}.doctors values (1, true), (2, true)",
    )
    async with context.schema(*setup) as schema:
        async with context.open() as one, _second(context, one) as other:
            seen = [await _begin_and_count(service, schema) for service in (one, other)]
            refused: list[str | None] = [None, None]
            for step in ("update {s}.doctors set on_call = false where id = {id}", "commit"):
                for at, service in enumerate((one, other)):
                    statement = step.format(s=schema, id=at + 1).encode()
                    refused[at] = refused[at] or await _refusal(service, statement)
        left = (await context.row(f"select count(*) as left from {schema}.doctors where on_call"))["left"]
    outcomes = [sqlstate or "committed" for sqlstate in refused]
    evidence = {
        "isolation": seen[0][0], "each_saw_on_call": [count for _, count in seen], "outcomes": outcomes,
        "left_on_call": left,
    }  # fmt: skip
    return ProbeFinding(left == 1 and sorted(outcomes) == ["40001", "committed"], evidence)


def _second(context: ProbeContext, one: ServiceConnection) -> AbstractAsyncContextManager[ServiceConnection]:
    one.require_company()
    return context.open(_SECOND_TIMEOUT_MS)


async def _begin_and_count(service: ServiceConnection, schema: str) -> tuple[str, int]:
    _, isolation, count = await service.run(
        BEGIN[False],
        b"select pg_catalog.current_setting('transaction_isolation')",
        f"select pg_catalog.count(*) from {schema}.doctors where on_call".encode(),
    )
    return (isolation.rows[0][0] or b"").decode(), int(count.rows[0][0] or 0)


async def _refusal(service: ServiceConnection, statement: bytes) -> str | None:
    try:
        await service.run(statement)
    except StatementError as error:
        return error.diagnosis.sqlstate
    return None


_PAIRS = "create table {s}.pairs (id int primary key, other int)"


async def atomic_transactions(context: ProbeContext) -> ProbeFinding:
    """A transaction whose last statement fails changes nothing; one that succeeds keeps all its changes."""
    async with context.schema(_PAIRS) as schema:
        insert = f"insert into {schema}.pairs (id) values"
        count = f"select count(*) as found from {schema}.pairs"
        failed = {}
        try:
            await context.transaction(TransactionStatement(f"{insert} (1)"), TransactionStatement(f"{insert} (1)"))
        except StatementError as error:
            failed = evidence_of(error)
        after_failure = (await context.row(count))["found"]
        await context.transaction(TransactionStatement(f"{insert} (1)"), TransactionStatement(f"{insert} (2)"))
        after_success = (await context.row(count))["found"]
    evidence = {"failure": failed, "rows_after_failure": after_failure, "rows_after_success": after_success}
    return ProbeFinding(bool(failed) and (after_failure, after_success) == (0, 2), evidence)


async def transaction_references(context: ProbeContext) -> ProbeFinding:
    """A parameter takes its value from an earlier statement's result."""
    async with context.schema(_PAIRS) as schema:
        await context.transaction(
            TransactionStatement(f"insert into {schema}.pairs (id) values (41) returning id"),
            TransactionStatement(
                f"insert into {schema}.pairs values ($1 + 1, $1)",
                [b'{"$ref": "0.rows.0.id"}'],
            ),
        )
        found = await context.row(f"select id, other from {schema}.pairs where other is not null")
    return ProbeFinding(found == {"id": 42, "other": 41}, {"row": found})


async def transaction_expectations(context: ProbeContext) -> ProbeFinding:
    """A transaction whose expectation fails changes nothing."""
    async with context.schema(_PAIRS) as schema:
        expect = Expectation(Count.AFFECTED, 2)
        failed = {}
        try:
            await context.transaction(
                TransactionStatement(f"insert into {schema}.pairs (id) values (1)", expect=expect)
            )
        except ServiceError as error:
            failed = evidence_of(error)
        left = (await context.row(f"select count(*) as found from {schema}.pairs"))["found"]
    return ProbeFinding(
        failed.get("code") == "expectation_failed" and left == 0, {"failure": failed, "rows_left": left}
    )


async def idempotency_keys(context: ProbeContext) -> ProbeFinding:
    """A key that was used is refused the second time. The probe rolls its record back."""
    async with context.open() as service:
        record = Record(service.place.record_secret, new_id(Kind.REQUEST), new_id(Kind.REQUEST), b"", lambda _: b"{}")
        claim, _, params = record.claim()
        finish, _, answer = record.finish([])
        await service.run(BEGIN[False], (claim, params), (finish, answer))
        try:
            await service.run((claim, params))
            second = "claimed again"
        except StatementError as error:
            second = error.diagnosis.sqlstate or ""
        await service.run(b"rollback")
    return ProbeFinding(second == _RECORDED, {"first": "recorded", "second": second})


async def parameters(context: ProbeContext) -> ProbeFinding:
    """Values of several types are sent separately from the statement."""
    found = await context.row(
        "select $1 + 1::int8 as number, $2::text as text, $3::int4[] as list, $4::jsonb as document, $5::date as none",
        [b"41", b'"it\'s"', b"[1, 2]", b'{"a": [true]}', b"null"],
    )
    wanted = {"number": 42, "text": "it's", "list": [1, 2], "document": {"a": [True]}, "none": None}
    return ProbeFinding(found == wanted, {"row": found})


async def exact_numbers(context: ProbeContext) -> ProbeFinding:
    """Numbers that a double can't represent keep every digit."""
    raw = (
        await context.raw_row("select 9007199254740993::int8 as a, 0.12345678901234567890123::numeric as b")
    ).decode()
    return ProbeFinding(raw == '{"a":9007199254740993,"b":0.12345678901234567890123}', {"json": raw})


async def read_only_requests(context: ProbeContext) -> ProbeFinding:
    """A read-only request can't write."""
    try:
        await context.row("create table plainsql_probe ()", read_only=True)
    except StatementError as error:
        return ProbeFinding(error.diagnosis.sqlstate == "25006", {"refused": evidence_of(error)})
    return ProbeFinding(False, {"refused": None})


async def statement_deadline(context: ProbeContext) -> ProbeFinding:
    """A statement that exceeds its deadline is cancelled."""
    began_us = monotonic_us()
    try:
        await context.row("select pg_sleep(5)", timeout_ms=_DEADLINE_MS)
        code = ""
    except LimitError as error:
        if error.code != "statement_timeout":
            raise
        code = error.code
    took_us = monotonic_us() - began_us
    ended = code == "statement_timeout" and took_us <= _ENDED_WITHIN_US
    return ProbeFinding(ended, {"deadline_us": _DEADLINE_MS * 1000, "ended_after_us": took_us, "code": code})


class _Clocked(Receiver):
    """Records when the rows of a stream arrive."""

    def __init__(self) -> None:
        self._began_us = monotonic_us()
        self.came_us: list[int] = []

    async def begin(self, shape: Shape, queue_us: int, *, is_buffered: bool) -> None:  # noqa: ARG002  # the protocol's names
        return

    async def take(self, rows: Sequence[bytes]) -> None:
        self.came_us += [monotonic_us() - self._began_us] * len(rows)


async def streaming(context: ProbeContext) -> ProbeFinding:
    """A query that produces a row every 20 ms: its first rows must arrive before its last one is produced."""
    clocked = _Clocked()
    sql = f"select n, pg_sleep({_ROW_EVERY_S}) from generate_series(1, {_STREAMED_ROWS}) n"
    await context.executors.streams.run(context.principal, StatementJob(sql, database=context.database), clocked)
    came = clocked.came_us
    is_streamed = len(came) == _STREAMED_ROWS and came[-1] - came[0] >= _ROW_EVERY_S * 1_000_000 * (len(came) - 3)
    return ProbeFinding(is_streamed, {"row_made_every_us": int(_ROW_EVERY_S * 1_000_000), "rows_came_after_us": came})


def refused(sql: str) -> Probe:
    """A probe of a feature that is not supported. It runs the statement anyway."""

    async def probe(context: ProbeContext) -> ProbeFinding:
        try:
            await context.row(sql)
        except (RequestError, StatementError) as error:
            return ProbeFinding(False, {"tried": sql, "refused": evidence_of(error)})
        return ProbeFinding(True, {"tried": sql, "refused": None})

    return probe
