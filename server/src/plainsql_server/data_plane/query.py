"""One statement, run for one principal, its result collected.

Owns the steps between an authenticated request and the engine: limits, database, lease, collection.
Refuses to render: rows come encoded from the engine room, and the envelope is `http/`'s.
"""

import re
from dataclasses import dataclass, replace

from plainsql_server.core.clock import Deadline, monotonic_us
from plainsql_server.core.errors import EngineError, LimitError, Outcome, RequestError, StatementError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.core.result import Result
from plainsql_server.core.statement import Statement, refuse_what_has_no_place
from plainsql_server.data_plane.databases import Databases, address_of
from plainsql_server.engine.connection import ResultTooLarge
from plainsql_server.engine.execution import CHUNK_ROWS, ResultStream, Run
from plainsql_server.engine.leftovers import Leftovers, leftovers_of
from plainsql_server.engine.pool import Lease, Pool, Pools, Reason
from plainsql_server.engine.shapes import PLAIN, Encoding
from plainsql_server.limits.tiers import TIERS, Limits

# Statements that a cursor can stand for, so that what nobody wants to see need not be computed.
_READS = frozenset(["SELECT", "VALUES", "TABLE"])
# What can commit on its way, so that a failure does not tell what stayed: procedures, and blocks that say so.
_COMMITS = re.compile(r"\b(commit|rollback|call)\b", re.IGNORECASE)
# How long the rest of a cut result is read and dropped before it is worth the while to ask again for less: this
# long, and at least as long as the first rows took, so that asking again can at most double the time.
_DROP_REST_MS = 100


@dataclass(slots=True)
class QueryRequest:
    """What the caller asked for; None where it left the choice to us."""

    statement: Statement
    database: str | None = None
    encoding: Encoding = PLAIN
    max_rows: int | None = None
    timeout_ms: int | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    """A checked request, with everything that running it needs."""

    statement: Statement
    command: str
    run: Run
    leftovers: Leftovers
    max_rows: int
    timeout_ms: int
    deadline: Deadline
    principal: Principal
    limits: Limits


class Queries:
    """Runs single statements."""

    def __init__(self, databases: Databases, pools: Pools) -> None:
        self._databases = databases
        self._pools = pools

    async def run(self, principal: Principal, request: QueryRequest) -> Result:
        """The statement's whole result. Raises ServiceError; cancelling it cancels the statement."""
        limits = TIERS[principal.tier]
        command = _check(request.statement, limits, principal.tier)
        record = await self._databases.find(principal, request.database)
        plain = record.plain and await self._databases.stays_plain(record, request.statement.sql)
        job = _job(request, principal, limits, command, plain_database=plain)
        pool = self._pools.for_address(address_of(record, principal))
        try:
            return await _collected(job, pool)
        except _CutShort:
            # The statement was rolled back on the way; run it for no more rows than are wanted.
            again = replace(job, run=replace(job.run, first_rows=job.max_rows + 1))
            return await _collected(again, pool)


class _CutShort(Exception):
    """A long result was ended because the rows that are wanted had come."""


def _job(request: QueryRequest, principal: Principal, limits: Limits, command: str, *, plain_database: bool) -> _Job:
    max_rows = limits.result_rows if request.max_rows is None else min(request.max_rows, limits.result_rows)
    timeout_ms = min(request.timeout_ms or limits.statement_timeout_ms, limits.statement_timeout_ms)
    read_only = request.read_only or not principal.may(Scope.WRITE)
    return _Job(
        statement=request.statement,
        command=command,
        run=Run(request.encoding, read_only, chunk_rows=min(CHUNK_ROWS, max_rows + 1)),
        leftovers=leftovers_of(request.statement.sql, plain_database=plain_database),
        max_rows=max_rows,
        timeout_ms=timeout_ms,
        deadline=Deadline.after_ms(timeout_ms),
        principal=principal,
        limits=limits,
    )


def _check(statement: Statement, limits: Limits, tier: str) -> str:
    if len(statement.sql) > limits.statement_bytes or len(statement.sql.encode()) > limits.statement_bytes:
        raise RequestError(
            "statement_too_large", f"A statement may have {limits.statement_bytes} bytes in the tier {tier!r}."
        )
    if len(statement.params) > limits.parameters:
        raise RequestError(
            "too_many_parameters",
            f"A statement may have {limits.parameters} parameters in the tier {tier!r}; this one has"
            f" {len(statement.params)}.",
        )
    return refuse_what_has_no_place(statement.sql)


async def _collected(job: _Job, pool: Pool) -> Result:
    asked_us = monotonic_us()
    principal = job.principal
    async with pool.lease(principal.organization_id, job.limits.concurrent_statements, job.deadline) as lease:
        lease.leftovers = job.leftovers
        queue_us = monotonic_us() - asked_us
        try:
            return await _collect(job, pool, lease, queue_us)
        except ResultTooLarge:
            raise _too_large(job, Outcome.ROLLED_BACK) from None
        except (StatementError, EngineError) as error:
            if lease.ended_for is not None and error.outcome is Outcome.ROLLED_BACK:
                raise _ended(lease.ended_for, job) from error
            if job.command in ("DO", "CALL") and _COMMITS.search(job.statement.sql):
                error.outcome = Outcome.UNKNOWN
            raise


async def _collect(job: _Job, pool: Pool, lease: Lease, queue_us: int) -> Result:
    lease.connection.max_result_bytes = job.limits.result_bytes
    stream = ResultStream(lease.connection, pool.catalog, job.run)
    await stream.start(job.statement)
    rows: list[bytes] = []
    size_bytes = 0
    truncated = False
    while (batch := await stream.next_batch()) is not None:
        if truncated or len(rows) + len(batch) > job.max_rows:
            # One row more than wanted proves that there are more. The rest is read and dropped, so that a
            # statement that also writes still commits; a mere reader is ended if that takes long.
            if not truncated and job.command in _READS and job.run.first_rows is None:
                lease.interrupt_after(max(_DROP_REST_MS, stream.elapsed_ms()), Reason.CUT_SHORT)
            truncated = True
            batch = batch[: job.max_rows - len(rows)]
        size_bytes += sum(map(len, batch))
        if size_bytes > job.limits.result_bytes:
            # Read on: only the engine's last word tells whether the statement took effect before it was ended.
            lease.interrupt(Reason.TOO_LARGE)
            batch = []
        rows += batch
    if lease.ended_for is Reason.TOO_LARGE:
        raise _too_large(job, Outcome.COMMITTED)
    assert stream.completion is not None
    return Result(stream.shape, rows, truncated, stream.completion, queue_us)


def _ended(reason: Reason, job: _Job) -> Exception:
    if reason is Reason.CUT_SHORT:
        return _CutShort()
    if reason is Reason.TOO_LARGE:
        return _too_large(job, Outcome.ROLLED_BACK)
    return LimitError(
        "statement_timeout",
        f"The statement did not finish within {job.timeout_ms} ms and was cancelled (tier {job.principal.tier!r}).",
        outcome=Outcome.ROLLED_BACK,
    )


def _too_large(job: _Job, outcome: Outcome) -> LimitError:
    return LimitError(
        "result_too_large",
        f"The result is larger than {job.limits.result_bytes} bytes, the limit of a buffered result in the tier"
        f" {job.principal.tier!r}.",
        hint="Ask for fewer rows or columns.",
        outcome=outcome,
    )
