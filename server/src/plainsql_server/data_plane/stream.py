"""Runs one statement for a principal and streams its rows while PostgreSQL produces them.

    end = await streams.run(principal, job, receiver)

A statement that only reads streams from a read-only transaction, so it can be slow without harming others. A statement
that writes runs like any query, commits, and is then streamed from memory: a slow client must not hold open a
transaction that could make others fail (decision 0009).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from plainsql_server.core.clock import Deadline, monotonic_us
from plainsql_server.core.errors import LimitError, Outcome, RequestError, ServiceError, StatementError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Completion, Result, Shape
from plainsql_server.data_plane.admission import lower
from plainsql_server.data_plane.databases import Databases, Place
from plainsql_server.data_plane.job import StatementJob, admit, note_usage
from plainsql_server.data_plane.outcome import complete_error, timed_out, to_error
from plainsql_server.data_plane.query import Queries
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.exchange import run_command
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.execution.read_stream import NoSafeSnapshot, ReadStream, is_refused_write
from plainsql_server.engine.pool.pool import Lease, Pool
from plainsql_server.engine.pool.pools import Pools

# How long a stream waits for a safe snapshot. Among short transactions, one is available within milliseconds. A longer
# wait means that a long transaction is running, which may take minutes (measured for decision 0009).
SAFE_SNAPSHOT_BUDGET_MS = 15
# How many rows of a result in memory are passed on at once.
_ROWS_AT_ONCE = 500

# Commands that may be read-only and can run behind a cursor. The empty one is a statement that starts with a
# parenthesis.
_MAY_ONLY_READ = frozenset(["SELECT", "VALUES", "TABLE", "WITH", ""])


# Why the rows of some statements are not streamed as they are produced.
WHY_BUFFERED = (
    "Only SELECT, VALUES, TABLE and WITH statements that do not write are sent row by row."
    " Others run to their end first."
)


class Receiver(Protocol):
    """Receives the rows. Both methods may wait, and raise if the client is gone."""

    async def begin(self, shape: Shape, queue_us: int, *, is_buffered: bool) -> None:
        """Called when PostgreSQL has answered. Rows of this shape follow; all are here already if it is buffered."""

    async def take(self, rows: Sequence[bytes]) -> None:
        """Takes the next rows, in the request's encoding."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a successful stream."""

    completion: Completion
    row_count: int
    truncated: bool


class ReaderTooSlow(Exception):
    """The client did not read a result in memory within the time limit of a stream. The statement is committed."""


class _NotARead(Exception):
    """The statement writes, or can't run behind a cursor. It had no effect, and no rows were passed on."""


class Streams:
    """Runs single statements and streams their rows."""

    def __init__(self, databases: Databases, pools: Pools, queries: Queries, tally: Tally) -> None:
        self._databases = databases
        self._pools = pools
        self._queries = queries
        self._tally = tally

    async def run(self, principal: Principal, job: StatementJob, receiver: Receiver) -> StreamEnd:
        """Streams the result of the statement. Raises ServiceError. Cancelling it cancels the statement.

        If it raises before it calls the receiver's `begin`, nothing was passed on. After that, rows may have been.
        """
        admit(job, principal)
        # A stream waits for its database and its slot no longer than an ordinary statement would.
        start_by = job.deadline
        place = await self._databases.find(principal, job.database, start_by)
        pool = self._pools.for_address(place.address, principal.organization_id)
        job.limit_time(job.limits.stream_life_ms)
        # Take the slot before running the statement: a request that is refused one must have no effect.
        async with pool.stream_slot(job.limits.concurrent_statements, start_by):
            if job.classification.command in _MAY_ONLY_READ:
                try:
                    return await self._read(job, principal, place, start_by, receiver)
                except _NotARead:
                    # Run it as an ordinary query, which returns its result or the right error.
                    pass
            result = await self._run_to_its_end(principal, job)
            # Sending has its own time limit, so that a committed statement that took long does not lose its rows.
            life_ms = lower(job.wanted_timeout_ms, job.limits.stream_life_ms)
            await _pass_on_from_memory(result, receiver, Deadline.after_ms(life_ms))
        return StreamEnd(result.completion, len(result.rows), result.truncated)

    async def _run_to_its_end(self, principal: Principal, job: StatementJob) -> Result:
        try:
            return await self._queries.run(principal, job)
        except LimitError as error:
            if error.code == "result_too_large":
                error.hint = f"{WHY_BUFFERED} Return fewer rows or columns."
            raise

    async def _read(
        self, job: StatementJob, principal: Principal, place: Place, start_by: Deadline, receiver: Receiver
    ) -> StreamEnd:
        job.is_streamed = True
        job.read_only |= place.address.read_only
        job.without_code = place.without_code and place.certain
        pool = self._pools.for_address(place.address, principal.organization_id)
        try:
            return await _stream(job, pool, start_by, receiver)
        except _NotARead:
            job.used_us = None
            raise
        except ServiceError as error:
            complete_error(error, job.used_us, may_write=not place.address.read_only, sql=job.sql)
            raise
        finally:
            # Counts the whole time that the stream held a connection, however slowly it was read.
            note_usage(self._tally, principal, place, job)


async def _stream(job: StatementJob, pool: Pool, start_by: Deadline, receiver: Receiver) -> StreamEnd:
    async with pool.lease(job.limits.concurrent_statements, start_by) as lease:
        leased_us = monotonic_us()
        # Whatever happens, its transaction changes nothing.
        job.outcome = Outcome.ROLLED_BACK
        try:
            stream = await _begin(job, pool, lease)
            await receiver.begin(stream.shape, lease.queue_us, is_buffered=False)
            return await _pass_on(job, lease, stream, receiver)
        except (ServiceError, ResultTooLarge) as error:
            reported = to_error(error, lease.ended_for, job, too_large=Outcome.ROLLED_BACK)
            reported.notices = lease.connection.take_notices()
            raise reported from (None if reported is error else error)
        finally:
            job.hold(monotonic_us() - leased_us)
            lease.session_state = job.session_state()


async def _pass_on_from_memory(result: Result, receiver: Receiver, life: Deadline) -> None:
    try:
        async with asyncio.timeout(life.left_s()):
            await receiver.begin(result.shape, result.queue_us, is_buffered=True)
            for first in range(0, len(result.rows), _ROWS_AT_ONCE):
                await receiver.take(result.rows[first : first + _ROWS_AT_ONCE])
    except TimeoutError:
        raise ReaderTooSlow from None


async def _begin(job: StatementJob, pool: Pool, lease: Lease) -> ReadStream:
    # Limits the rows that are in memory at once: a single one, or several small ones.
    lease.connection.max_result_bytes = job.limits.result_bytes
    lease.live_until(job.deadline)
    try:
        stream = await _open(job, pool, lease)
    except (RequestError, StatementError) as error:
        _check_time(job, lease)
        raise _NotARead from error
    try:
        await stream.begin()
    except StatementError as error:
        if job.read_only or not is_refused_write(error):
            raise
        raise _NotARead from error
    return stream


async def _open(job: StatementJob, pool: Pool, lease: Lease) -> ReadStream:
    stream = ReadStream(lease.connection, pool.catalog, job, job.wanted_rows, SAFE_SNAPSHOT_BUDGET_MS)
    try:
        await stream.open()
    except NoSafeSnapshot:
        _check_time(job, lease)
        await run_command(lease.connection, b"rollback")
        # Unless its snapshot becomes safe, this transaction can make others fail, so it gets the time limit of an
        # ordinary statement.
        job.limit_time(job.limits.statement_timeout_ms)
        lease.live_until(job.deadline)
        stream = ReadStream(lease.connection, pool.catalog, job, job.wanted_rows)
        await stream.open()
    return stream


async def _pass_on(job: StatementJob, lease: Lease, stream: ReadStream, receiver: Receiver) -> StreamEnd:
    max_rows = job.wanted_rows
    truncated = False
    while (rows := await stream.next_rows()) is not None:
        # Between two FETCHes there is nothing to cancel, so check here.
        _check_time(job, lease)
        if max_rows is not None and job.row_count + len(rows) > max_rows:
            # One extra row proves that there are more.
            truncated = True
            rows = rows[: max_rows - job.row_count]
        job.row_count += len(rows)
        job.size_bytes += sum(map(len, rows))
        await receiver.take(rows)
    return StreamEnd(await stream.close(), job.row_count, truncated)


def _check_time(job: StatementJob, lease: Lease) -> None:
    if lease.ended_for is not None:
        raise timed_out(job)
