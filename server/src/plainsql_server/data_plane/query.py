"""Runs one statement for a principal and collects its result.

    result = await queries.run(principal, QueryRequest("select $1::int", [b"1"]))

It checks limits, finds the database, leases a connection, and collects the rows, which arrive already encoded. The
answer around them is built in `http/`.
"""

import re
import time
from collections.abc import Sequence

from plainsql_server.core.clock import Deadline, monotonic_us
from plainsql_server.core.errors import Outcome, ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.core.statement import Statement
from plainsql_server.data_plane.admission import (
    check_statement,
    result_too_large,
    statement_timed_out,
    was_ended,
    was_rolled_back,
)
from plainsql_server.data_plane.classification import Classification, classify
from plainsql_server.data_plane.databases import WITHOUT_CODE_FOR_S, Databases
from plainsql_server.data_plane.retry import DEFAULT_RETRIES, Retries
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.connection import ResultTooLarge
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.encoding.shapes import DEFAULT_ENCODING
from plainsql_server.engine.execution.execution import CHUNK_ROWS, ResultStream, Run
from plainsql_server.engine.pool.pool import Lease, Pool, Pools, Reason
from plainsql_server.limits.tiers import TIERS, Limits

# Statements that can run behind a cursor, so that unwanted rows need not be computed.
_READS = frozenset(["SELECT", "VALUES", "TABLE"])
# Statements that take effect completely or not at all, so they can be retried.
_RETRIED = _READS | {"WITH", "INSERT", "UPDATE", "DELETE", "MERGE"}
# Statements that can commit midway, so a failure does not mean that nothing took effect: procedures and blocks, and
# commands that use several transactions.
_COMMITS = frozenset(["DO", "CALL", "VACUUM", "CLUSTER", "REINDEX"])
# A DO block that can't commit: it is dollar-quoted, so its text can be read as it is, and has none of these keywords.
_BLOCK = re.compile(r"(?:\s|/\*(?:(?!\*/).)*+\*/)*+do\s+\$\w*\$", re.IGNORECASE | re.DOTALL)
_ENDS_TRANSACTIONS = re.compile(r"\b(?:commit|rollback|call|execute)\b", re.IGNORECASE)
_CONCURRENTLY = re.compile(r"\bconcurrently\b", re.IGNORECASE)
# How long to read and discard the rest of a truncated result before running the statement again with fewer rows: this
# long, and at least as long as the first rows took, so that running it again at most doubles the time.
_DROP_REST_MS = 100


class QueryRequest:
    """A query as the caller sent it. None means that the caller left the choice to the service."""

    __slots__ = ("database", "encoding", "max_rows", "params", "read_only", "sql", "timeout_ms")

    def __init__(
        self,
        sql: str,
        params: Sequence[bytes] = (),
        database: str | None = None,
        *,
        timeout_ms: int | None = None,
        read_only: bool = False,
    ) -> None:
        self.sql = sql
        self.params = params
        self.database = database
        self.encoding = DEFAULT_ENCODING
        self.max_rows: int | None = None
        self.timeout_ms = timeout_ms
        self.read_only = read_only


class _Job:
    """A validated request, with everything needed to run it."""

    __slots__ = (
        "began_s",
        "classification",
        "deadline",
        "held_us",
        "limits",
        "max_rows",
        "run",
        "statement",
        "tier",
        "timeout_ms",
        "without_code",
    )  # fmt: skip

    def __init__(self, request: QueryRequest, classification: Classification, limits: Limits, tier: str) -> None:
        max_rows = limits.result_rows
        if request.max_rows is not None and request.max_rows < max_rows:
            max_rows = request.max_rows
        timeout_ms = limits.statement_timeout_ms
        if request.timeout_ms is not None and request.timeout_ms < timeout_ms:
            timeout_ms = request.timeout_ms
        self.statement = Statement(request.sql, request.params)
        self.classification = classification
        self.run = Run(request.encoding, request.read_only, CHUNK_ROWS if max_rows >= CHUNK_ROWS else max_rows + 1)
        self.max_rows = max_rows
        self.timeout_ms = timeout_ms
        self.began_s = time.monotonic()
        self.deadline = Deadline(self.began_s + timeout_ms / 1000)
        self.limits = limits
        self.tier = tier
        # Whether the database had no code when it was looked up.
        self.without_code = False
        # How long it held a connection, over all attempts. None until it gets the first one.
        self.held_us: int | None = None


class Queries:
    """Runs single statements."""

    def __init__(self, databases: Databases, pools: Pools, tally: Tally) -> None:
        self._databases = databases
        self._pools = pools
        self._tally = tally

    async def run(self, principal: Principal, request: QueryRequest) -> Result:
        """The complete result of the statement. Raises ServiceError. Cancelling it cancels the statement."""
        limits = TIERS[principal.tier]
        check_statement(request.sql, request.params, limits, principal.tier)
        job = _Job(request, classify(request.sql), limits, principal.tier)
        place = self._databases.remembered(principal, request.database) or await self._databases.find(
            principal, request.database, job.deadline
        )
        job.run.read_only |= place.address.read_only
        job.without_code = place.without_code
        if job.without_code and job.classification.may_store_code and not job.run.read_only:
            await self._databases.prepare_for_code(place, job.deadline)
            job.without_code = False
        job.without_code &= place.certain
        pool = self._pools.for_address(place.address, principal.organization_id)
        result = None
        try:
            result = await _run_until_done(job, pool)
            return result
        finally:
            # A request that never got a connection used nothing, however long it waited.
            if result is None and job.held_us is not None:
                self._tally.note_usage(principal.organization_id, place.database_id, 0, job.held_us, 0)
            elif result is not None:
                exec_us, size_bytes = result.completion.exec_us, result.size_bytes
                self._tally.note_usage(
                    principal.organization_id, place.database_id, len(result.rows), exec_us, size_bytes
                )


async def _run_until_done(job: _Job, pool: Pool) -> Result:
    """Runs a statement, and retries it if PostgreSQL rolled it back because of a conflict with other transactions."""
    try:
        return await _run(job, pool)
    except ServiceError as error:
        if job.classification.command not in _RETRIED:
            raise
        retries = Retries(pool.retry_lane, DEFAULT_RETRIES, job.deadline, attempts=1)
        if not retries.allow(error):
            raise
    while True:
        async with retries.attempt():
            try:
                return await _run(job, pool)
            except ServiceError as error:
                if not retries.allow(error):
                    raise


async def _run(job: _Job, pool: Pool) -> Result:
    while True:
        async with pool.lease(job.limits.concurrent_statements, job.deadline) as lease:
            leased_us = monotonic_us()
            try:
                return await _collect(job, pool, lease)
            except (ServiceError, ResultTooLarge) as error:
                if lease.ended_for is not Reason.CUT_SHORT or not was_rolled_back(error):
                    reported = _to_error(error, lease.ended_for, job)
                    raise reported from (None if reported is error else error)
            finally:
                job.held_us = (job.held_us or 0) + monotonic_us() - leased_us
                lease.session_state = _session_state(job)
        # The wanted rows had arrived, but the statement was cut short. Run it again, for these rows only.
        job.run.first_rows = job.max_rows + 1


def _session_state(job: _Job) -> SessionState:
    # Code may be stored in the database while a statement waits for a slot or a lock, so only a quick statement can
    # rely on what was known when it started.
    quick = time.monotonic() - job.began_s < WITHOUT_CODE_FOR_S
    return job.classification.state_without_code if job.without_code and quick else job.classification.session_state


async def _collect(job: _Job, pool: Pool, lease: Lease) -> Result:
    connection = lease.connection
    connection.max_result_bytes = job.limits.result_bytes
    # A read-only role needs the guard, too: a function can run with its owner's rights.
    job.run.guarded = job.run.read_only and _session_state(job) > SessionState.SEQUENCES
    stream = ResultStream(connection, pool.catalog, job.run)
    await stream.start(job.statement)
    rows: list[bytes] = []
    size_bytes = 0
    truncated = False
    while (batch := await stream.next_batch()) is not None:
        if truncated or len(rows) + len(batch) > job.max_rows:
            # One extra row proves that there are more. The rest is read and discarded, so that a statement that also
            # writes still commits. A statement that only reads is cut short if this takes long.
            if not truncated and job.classification.command in _READS and job.run.first_rows is None:
                lease.interrupt_after(max(_DROP_REST_MS, stream.elapsed_ms()), Reason.CUT_SHORT)
            truncated = True
            batch = batch[: job.max_rows - len(rows)]
        size_bytes += sum(map(len, batch))
        if size_bytes > job.limits.result_bytes:
            # Keep reading: only PostgreSQL's final message shows whether the statement took effect before it ended.
            lease.interrupt(Reason.TOO_LARGE)
            batch = []
        rows += batch
    if lease.ended_for is not None and lease.ended_for is Reason.TOO_LARGE:
        raise result_too_large(job.limits, job.tier, Outcome.COMMITTED)
    assert stream.completion is not None
    return Result(stream.shape, rows, truncated, stream.completion, lease.queue_us, size_bytes=size_bytes)


def _to_error(error: ServiceError | ResultTooLarge, reason: Reason | None, job: _Job) -> ServiceError:
    """The error to report. If we ended the statement ourselves, it names our reason instead of PostgreSQL's error."""
    reported = _converted(error, reason, job)
    if reported.outcome is Outcome.ROLLED_BACK and _may_have_committed(job):
        reported.outcome = Outcome.UNKNOWN
    return reported


def _may_have_committed(job: _Job) -> bool:
    sql = job.statement.sql
    if job.classification.command not in _COMMITS:
        return _CONCURRENTLY.search(sql) is not None
    block = _BLOCK.match(sql)
    return block is None or _ENDS_TRANSACTIONS.search(sql, block.end()) is not None


def _converted(error: ServiceError | ResultTooLarge, reason: Reason | None, job: _Job) -> ServiceError:
    if isinstance(error, ResultTooLarge):
        return result_too_large(job.limits, job.tier, Outcome.UNKNOWN)
    if was_rolled_back(error) and reason is Reason.TOO_LARGE:
        return result_too_large(job.limits, job.tier, Outcome.ROLLED_BACK)
    if was_ended(error) and reason is Reason.DEADLINE:
        return statement_timed_out(job.timeout_ms, job.tier, error.outcome)
    return error
