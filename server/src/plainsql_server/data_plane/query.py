"""Runs one statement for a principal and collects its result.

    result = await queries.run(principal, StatementJob("select $1::int", [b"1"]))

It checks limits, finds the database, leases a connection, and collects the rows, which arrive already encoded. The
answer around them is built in `http/`.
"""

import re

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import Outcome, ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.data_plane.databases import Databases, Place
from plainsql_server.data_plane.head_start import HeadStart, SentStatement
from plainsql_server.data_plane.job import StatementJob, admit, note_usage
from plainsql_server.data_plane.outcome import complete_error, result_too_large, to_error, was_rolled_back
from plainsql_server.data_plane.retry import DEFAULT_RETRIES, Retries
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.interrupt import InterruptReason
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.execution.execution import CHUNK_ROWS, ResultStream
from plainsql_server.engine.pool.pool import Lease, Pool
from plainsql_server.engine.pool.pools import Pools

# Statements that can run behind a cursor, so that unwanted rows need not be computed.
_READS = frozenset(["SELECT", "VALUES", "TABLE"])
# Statements that take effect completely or not at all, so they can be retried.
_RETRIED = _READS | {"WITH", "INSERT", "UPDATE", "DELETE", "MERGE"}
# Statements that can commit midway, so a failure does not mean that nothing took effect: procedures and blocks, and
# commands that use several transactions.
_COMMITS = frozenset(["DO", "CALL", "VACUUM", "CLUSTER", "REINDEX"])
# A DO block that can't commit: it is dollar-quoted, so its text can be read as it is, and has none of these keywords.
# EXECUTE is not among them: PostgreSQL refuses to end a transaction in what it runs. A DO in the block is.
_BLOCK = re.compile(r"(?:\s|/\*(?:(?!\*/).)*+\*/)*+do\s+\$\w*\$", re.IGNORECASE | re.DOTALL)
_ENDS_TRANSACTIONS = re.compile(r"\b(?:(?:commit|rollback|call)\b|do\s+(?:language\b|(?:e|u&)?'|\$))", re.IGNORECASE)
_CONCURRENTLY = re.compile(r"\bconcurrently\b", re.IGNORECASE)
# How long to read and discard the rest of a truncated result before running the statement again with fewer rows: this
# long, and at least as long as the first rows took, so that running it again at most doubles the time.
_DROP_REST_MS = 100
# Looked up once: in Python 3.11, each lookup of an enum member is a function call.
_UNKNOWN = Outcome.UNKNOWN
_COMMITTED = Outcome.COMMITTED
_SEQUENCES = SessionState.SEQUENCES


class Queries:
    """Runs single statements."""

    def __init__(self, databases: Databases, pools: Pools, tally: Tally) -> None:
        self._databases = databases
        self._pools = pools
        self._tally = tally

    async def run(self, principal: Principal, job: StatementJob) -> Result:
        """The complete result of the statement. Raises ServiceError. Cancelling it cancels the statement."""
        admit(job, principal)
        if job.head_start is None:
            place = await self._databases.find(principal, job.database, job.deadline)
        else:
            place = job.head_start.place
        if _adapt(job, place):
            await self._databases.prepare_for_code(place, job.deadline)
        pool = self._pools.for_address(place.address, principal.organization_id)
        try:
            result = await _run_until_done(job, pool)
            job.outcome = _COMMITTED
            job.used_us, job.row_count, job.size_bytes = (
                result.completion.exec_us, len(result.rows), result.size_bytes
            )  # fmt: skip
            return result
        except ServiceError as error:
            complete_error(error, job.used_us, may_write=not place.address.read_only, sql=job.sql)
            raise
        finally:
            note_usage(self._tally, principal, place, job)


def _adapt(job: StatementJob, place: Place) -> bool:
    """Adapts a job to its database. Returns whether it may store code there for the first time."""
    job.is_streamed = False
    job.read_only |= place.address.read_only
    job.chunk_rows = CHUNK_ROWS if job.max_rows >= CHUNK_ROWS else job.max_rows + 1
    stores_first_code = place.without_code and job.classification.may_store_code and not job.read_only
    job.without_code = place.without_code and place.certain and not stores_first_code
    return stores_first_code


async def _run_until_done(job: StatementJob, pool: Pool) -> Result:
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


async def _run(job: StatementJob, pool: Pool) -> Result:
    while True:
        head_start, job.head_start = job.head_start, None
        lease = pool.lease(job.limits.concurrent_statements, job.deadline) if head_start is None else head_start.take()
        async with lease:
            leased_us = monotonic_us() if head_start is None else head_start.sent_us()
            job.outcome = _UNKNOWN
            try:
                return await _collect(job, pool, lease, head_start)
            except (ServiceError, ResultTooLarge) as error:
                if lease.ended_for is not InterruptReason.CUT_SHORT or not was_rolled_back(error):
                    reported = _to_error(error, lease, job)
                    reported.notices = lease.connection.take_notices()
                    raise reported from (None if reported is error else error)
            finally:
                job.hold(monotonic_us() - leased_us)
                lease.session_state = job.session_state()
        # The wanted rows had arrived, but the statement was cut short. Run it again, for these rows only.
        job.first_rows = job.max_rows + 1


async def _collect(job: StatementJob, pool: Pool, lease: Lease, head_start: HeadStart | None) -> Result:
    connection = lease.connection
    connection.max_result_bytes = job.limits.result_bytes
    # A read-only role needs the guard, too: a function can run with its owner's rights.
    job.guarded = job.read_only and job.session_state() > _SEQUENCES
    stream = ResultStream(connection, pool.catalog, job)
    sent = None if head_start is None else head_start.sent
    if isinstance(sent, SentStatement):
        await stream.resume(sent.prepared, sent.sent_us)
    else:
        await stream.start()
    rows: list[bytes] = []
    size_bytes = 0
    truncated = False
    while (batch := await stream.next_batch()) is not None:
        if truncated or len(rows) + len(batch) > job.max_rows:
            # One extra row proves that there are more. The rest is read and discarded, so that a statement that also
            # writes still commits. A statement that only reads is cut short if this takes long.
            if not truncated and job.classification.command in _READS and job.first_rows is None:
                lease.interrupt_after(max(_DROP_REST_MS, stream.elapsed_ms()), InterruptReason.CUT_SHORT)
            truncated = True
            batch = batch[: job.max_rows - len(rows)]
        size_bytes += sum(map(len, batch))
        if size_bytes > job.limits.result_bytes:
            # Keep reading: only PostgreSQL's final message shows whether the statement took effect before it ended.
            lease.interrupt(InterruptReason.TOO_LARGE)
            batch = []
        rows += batch
    # Also if it was interrupted for another reason, such as its deadline, and completed all the same: rows are missing.
    if size_bytes > job.limits.result_bytes or lease.ended_for is InterruptReason.TOO_LARGE:
        raise result_too_large(job, _COMMITTED)
    assert stream.completion is not None
    return Result(stream.shape, rows, truncated, stream.completion, lease.queue_us, size_bytes=size_bytes)


def _to_error(error: ServiceError | ResultTooLarge, lease: Lease, job: StatementJob) -> ServiceError:
    reported = to_error(error, lease.ended_for, job)
    if reported.outcome is Outcome.ROLLED_BACK and _may_have_committed(job):
        reported.outcome = _UNKNOWN
    return reported


def _may_have_committed(job: StatementJob) -> bool:
    sql = job.sql
    if job.classification.command not in _COMMITS:
        return _CONCURRENTLY.search(sql) is not None
    block = _BLOCK.match(sql)
    return block is None or _ENDS_TRANSACTIONS.search(sql, block.end()) is not None
