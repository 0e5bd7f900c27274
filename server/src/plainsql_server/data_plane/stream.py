"""One statement, run for one principal, its rows passed on as the engine makes them.

Owns what a stream may do and how long. A read streams in a read-only transaction, so that it can be slow
without harming anybody. What writes is run like any query, committed, and passed on from memory: a client
that reads slowly must not hold a transaction that others could fail because of (decision 0009). Refuses to
render; who receives the rows knows how to send them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError, Outcome, RequestError, ServiceError, StatementError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Completion, Result, Shape
from plainsql_server.core.statement import Statement
from plainsql_server.data_plane.admission import check_statement
from plainsql_server.data_plane.classification import Classification, classify
from plainsql_server.data_plane.databases import PLAIN_FOR_S, Databases, Place
from plainsql_server.data_plane.query import Queries, QueryRequest
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.connection import ResultTooLarge
from plainsql_server.engine.connection.exchange import run_command
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.execution.read_stream import NoSafeSnapshot, ReadStream, is_refused_write
from plainsql_server.engine.pool.pool import Lease, Pool, Pools, Reason
from plainsql_server.limits.tiers import TIERS, Limits

# How long a stream waits for a safe snapshot. Beside short transactions one comes within some milliseconds; what
# takes longer waits for somebody's long transaction, which may be minutes (measured for decision 0009).
SAFE_SNAPSHOT_BUDGET_MS = 15
# Rows of a result in memory that are passed on at once.
_ROWS_AT_ONCE = 500

# Commands that may turn out to only read, and for which a cursor can stand; without a word there is a parenthesis.
_MAY_ONLY_READ = frozenset(["SELECT", "VALUES", "TABLE", "WITH", ""])


class Receiver(Protocol):
    """Who gets the rows. Both may wait, and raise where nobody is left to read."""

    async def begin(self, shape: Shape, queue_us: int) -> None:
        """The engine has answered: rows of this shape follow."""

    async def take(self, rows: Sequence[bytes]) -> None:
        """The next rows, in the request's encoding."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended that did not fail."""

    completion: Completion
    row_count: int
    truncated: bool


@dataclass(slots=True)
class _Job:
    """A read that may run, with everything that running it needs."""

    request: QueryRequest
    classification: Classification
    place: Place
    read_only: bool
    limits: Limits
    tier: str
    life_ms: int
    began_s: float
    # When it got its connection.
    leased_s: float = 0.0
    # What was passed on until now.
    row_count: int = 0
    size_bytes: int = 0

    def deadline(self, life_ms: int) -> Deadline:
        return Deadline(self.began_s + min(life_ms, self.life_ms) / 1000)


class ReaderTooSlow(Exception):
    """A result in memory was not read within a stream's life. What made it is committed."""


class _NotARead(Exception):
    """The statement writes, or no cursor can stand for it. Nothing was done, and nothing was passed on."""


class Streams:
    """Runs single statements whose rows are passed on."""

    def __init__(self, databases: Databases, pools: Pools, queries: Queries, tally: Tally) -> None:
        self._databases = databases
        self._pools = pools
        self._queries = queries
        self._tally = tally

    async def run(self, principal: Principal, request: QueryRequest, receiver: Receiver) -> StreamEnd:
        """Passes the statement's result on. Raises ServiceError; cancelling it cancels the statement.

        What is raised before the receiver's `begin` had no answer yet; later, rows may have been passed on.
        """
        check_statement(request.sql, request.params, TIERS[principal.tier], principal.tier)
        classification = classify(request.sql)
        place = self._databases.remembered(principal, request.database) or await self._databases.find(
            principal, request.database
        )
        job = _job(principal, request, classification, place)
        if classification.command in _MAY_ONLY_READ:
            try:
                return await self._read_and_count(job, principal, receiver)
            except _NotARead:
                # Run as what it is, it gives its result, or the error that tells its caller what is wrong with it.
                pass
        return await self._collect(job, principal, receiver)

    async def _collect(self, job: _Job, principal: Principal, receiver: Receiver) -> StreamEnd:
        pool = self._pools.for_address(job.place.address, principal.organization_id)
        turn_by = job.deadline(job.limits.statement_timeout_ms)
        # The turn comes before the statement, because who is refused one must find nothing done.
        async with pool.stream_turn(job.limits.concurrent_statements, turn_by):
            result = await self._queries.run(principal, job.request)
            try:
                # Passing on has a life of its own: how long the statement took is no reason to lose its rows.
                async with asyncio.timeout(job.life_ms / 1000):
                    await _pass_on_from_memory(result, receiver)
            except TimeoutError:
                raise ReaderTooSlow from None
        return StreamEnd(result.completion, len(result.rows), result.truncated)

    async def _read_and_count(self, job: _Job, principal: Principal, receiver: Receiver) -> StreamEnd:
        is_read = True
        try:
            return await self._read(job, principal, receiver)
        except _NotARead:
            is_read = False
            raise
        finally:
            if is_read and job.leased_s:
                # A connection is held as long as the stream lives, however slowly it is read.
                held_us = int((time.monotonic() - job.leased_s) * 1_000_000)
                self._tally.note_usage(
                    principal.organization_id, job.place.database_id, job.row_count, held_us, job.size_bytes
                )

    async def _read(self, job: _Job, principal: Principal, receiver: Receiver) -> StreamEnd:
        pool = self._pools.for_address(job.place.address, principal.organization_id)
        limit = job.limits.concurrent_statements
        # Waiting for a turn is not what a stream's long life is for.
        turn_by = job.deadline(job.limits.statement_timeout_ms)
        async with pool.stream_turn(limit, turn_by), pool.lease(limit, turn_by) as lease:
            job.leased_s = time.monotonic()
            try:
                stream = await _begin(job, pool, lease)
                await receiver.begin(stream.shape, lease.queue_us)
                return await _pass_on(job, lease, stream, receiver)
            except (ServiceError, ResultTooLarge) as error:
                told = _told(error, lease.ended_for, job)
                raise told from (None if told is error else error)
            finally:
                lease.session_state = _session_state(job)


async def _pass_on_from_memory(result: Result, receiver: Receiver) -> None:
    await receiver.begin(result.shape, result.queue_us)
    for first in range(0, len(result.rows), _ROWS_AT_ONCE):
        await receiver.take(result.rows[first : first + _ROWS_AT_ONCE])


def _job(principal: Principal, request: QueryRequest, classification: Classification, place: Place) -> _Job:
    limits = TIERS[principal.tier]
    life_ms = limits.stream_life_ms if request.timeout_ms is None else min(request.timeout_ms, limits.stream_life_ms)
    read_only = request.read_only or place.address.read_only
    return _Job(request, classification, place, read_only, limits, principal.tier, life_ms, time.monotonic())


async def _begin(job: _Job, pool: Pool, lease: Lease) -> ReadStream:
    # The rows that are in memory at once: one, or some small ones.
    lease.connection.max_result_bytes = job.limits.result_bytes
    lease.live_until(job.deadline(job.limits.stream_life_ms))
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


async def _open(job: _Job, pool: Pool, lease: Lease) -> ReadStream:
    connection, request = lease.connection, job.request
    statement = Statement(request.sql, request.params)
    stream = ReadStream(connection, pool.catalog, request.encoding, request.max_rows, SAFE_SNAPSHOT_BUDGET_MS)
    try:
        await stream.open(statement)
    except NoSafeSnapshot:
        _check_time(job, lease)
        await run_command(connection, b"rollback")
        # Until it happens to become safe, this transaction can make others fail, so that it may not live longer than
        # any other.
        lease.live_until(job.deadline(job.limits.statement_timeout_ms))
        stream = ReadStream(connection, pool.catalog, request.encoding, request.max_rows)
        await stream.open(statement)
    return stream


async def _pass_on(job: _Job, lease: Lease, stream: ReadStream, receiver: Receiver) -> StreamEnd:
    max_rows = job.request.max_rows
    count = 0
    truncated = False
    while (rows := await stream.next_rows()) is not None:
        # Between two FETCHes the engine has nothing to cancel.
        _check_time(job, lease)
        if max_rows is not None and count + len(rows) > max_rows:
            # One row more than wanted proves that there are more.
            truncated = True
            rows = rows[: max_rows - count]
        count += len(rows)
        job.row_count, job.size_bytes = count, job.size_bytes + sum(map(len, rows))
        await receiver.take(rows)
    return StreamEnd(await stream.close(), count, truncated)


def _check_time(job: _Job, lease: Lease) -> None:
    if lease.ended_for is not None:
        raise _timeout(job)


def _session_state(job: _Job) -> SessionState:
    quick = time.monotonic() - job.began_s < PLAIN_FOR_S
    return (
        job.classification.state_without_code
        if job.place.plain and job.place.certain and quick
        else job.classification.session_state
    )


def _told(error: ServiceError | ResultTooLarge, reason: Reason | None, job: _Job) -> ServiceError:
    """The error as the caller is told it: what we ended ourselves is not the engine's doing, and changed nothing."""
    if isinstance(error, ResultTooLarge):
        return LimitError(
            "result_too_large",
            f"A row, or small rows and large ones that came together, are larger than {job.limits.result_bytes} bytes,"
            f" the limit in the tier {job.tier!r}.",
            outcome=Outcome.ROLLED_BACK,
        )
    return _timeout(job) if reason is Reason.DEADLINE else error


def _timeout(job: _Job) -> LimitError:
    return LimitError(
        "statement_timeout",
        f"The stream did not end within {round((time.monotonic() - job.began_s) * 1000)} ms, its longest life here,"
        f" and was cancelled (tier {job.tier!r}).",
        outcome=Outcome.ROLLED_BACK,
    )
