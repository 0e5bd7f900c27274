"""Runs one statement for a principal and streams its rows while PostgreSQL produces them.

    end = await streams.run(principal, request, receiver)

A statement that only reads streams from a read-only transaction, so it can be slow without harming others. A statement
that writes runs like any query, commits, and is then streamed from memory: a slow client must not hold open a
transaction that could make others fail (decision 0009).
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
from plainsql_server.data_plane.databases import WITHOUT_CODE_FOR_S, Databases, Place
from plainsql_server.data_plane.query import Queries, QueryRequest
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.connection import ResultTooLarge
from plainsql_server.engine.connection.exchange import run_command
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.execution.read_stream import NoSafeSnapshot, ReadStream, is_refused_write
from plainsql_server.engine.pool.pool import Lease, Pool, Pools, Reason
from plainsql_server.limits.tiers import TIERS, Limits

# How long a stream waits for a safe snapshot. Among short transactions, one is available within milliseconds. A longer
# wait means that a long transaction is running, which may take minutes (measured for decision 0009).
SAFE_SNAPSHOT_BUDGET_MS = 15
# How many rows of a result in memory are passed on at once.
_ROWS_AT_ONCE = 500

# Commands that may be read-only and can run behind a cursor. The empty one is a statement that starts with a
# parenthesis.
_MAY_ONLY_READ = frozenset(["SELECT", "VALUES", "TABLE", "WITH", ""])


class Receiver(Protocol):
    """Receives the rows. Both methods may wait, and raise if the client is gone."""

    async def begin(self, shape: Shape, queue_us: int) -> None:
        """Called when PostgreSQL has answered. Rows of this shape follow."""

    async def take(self, rows: Sequence[bytes]) -> None:
        """Takes the next rows, in the request's encoding."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a successful stream."""

    completion: Completion
    row_count: int
    truncated: bool


@dataclass(slots=True)
class _StreamJob:
    """A validated request, with everything needed to stream it."""

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
    # What was passed on so far.
    row_count: int = 0
    size_bytes: int = 0

    def deadline(self, life_ms: int) -> Deadline:
        return Deadline(self.began_s + min(life_ms, self.life_ms) / 1000)


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

    async def run(self, principal: Principal, request: QueryRequest, receiver: Receiver) -> StreamEnd:
        """Streams the result of the statement. Raises ServiceError. Cancelling it cancels the statement.

        If it raises before it calls the receiver's `begin`, nothing was passed on. After that, rows may have been.
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
                # Run it as an ordinary query, which returns its result or the right error.
                pass
        return await self._collect(job, principal, receiver)

    async def _collect(self, job: _StreamJob, principal: Principal, receiver: Receiver) -> StreamEnd:
        pool = self._pools.for_address(job.place.address, principal.organization_id)
        slot_deadline = job.deadline(job.limits.statement_timeout_ms)
        # Take the stream slot before running the statement: a request that is refused one must have no effect.
        async with pool.stream_slot(job.limits.concurrent_statements, slot_deadline):
            result = await self._queries.run(principal, job.request)
            try:
                # Sending has its own time limit, so a long statement does not lose its rows.
                async with asyncio.timeout(job.life_ms / 1000):
                    await _pass_on_from_memory(result, receiver)
            except TimeoutError:
                raise ReaderTooSlow from None
        return StreamEnd(result.completion, len(result.rows), result.truncated)

    async def _read_and_count(self, job: _StreamJob, principal: Principal, receiver: Receiver) -> StreamEnd:
        is_read = True
        try:
            return await self._read(job, principal, receiver)
        except _NotARead:
            is_read = False
            raise
        finally:
            if is_read and job.leased_s:
                # Count the whole time that the stream held a connection, however slowly it was read.
                held_us = int((time.monotonic() - job.leased_s) * 1_000_000)
                self._tally.note_usage(
                    principal.organization_id, job.place.database_id, job.row_count, held_us, job.size_bytes
                )

    async def _read(self, job: _StreamJob, principal: Principal, receiver: Receiver) -> StreamEnd:
        pool = self._pools.for_address(job.place.address, principal.organization_id)
        limit = job.limits.concurrent_statements
        # Wait for a slot no longer than an ordinary statement would, despite the longer time limit of streams.
        slot_deadline = job.deadline(job.limits.statement_timeout_ms)
        async with pool.stream_slot(limit, slot_deadline), pool.lease(limit, slot_deadline) as lease:
            job.leased_s = time.monotonic()
            try:
                stream = await _begin(job, pool, lease)
                await receiver.begin(stream.shape, lease.queue_us)
                return await _pass_on(job, lease, stream, receiver)
            except (ServiceError, ResultTooLarge) as error:
                reported = _to_error(error, lease.ended_for, job)
                raise reported from (None if reported is error else error)
            finally:
                lease.session_state = _session_state(job)


async def _pass_on_from_memory(result: Result, receiver: Receiver) -> None:
    await receiver.begin(result.shape, result.queue_us)
    for first in range(0, len(result.rows), _ROWS_AT_ONCE):
        await receiver.take(result.rows[first : first + _ROWS_AT_ONCE])


def _job(principal: Principal, request: QueryRequest, classification: Classification, place: Place) -> _StreamJob:
    limits = TIERS[principal.tier]
    life_ms = limits.stream_life_ms if request.timeout_ms is None else min(request.timeout_ms, limits.stream_life_ms)
    read_only = request.read_only or place.address.read_only
    return _StreamJob(request, classification, place, read_only, limits, principal.tier, life_ms, time.monotonic())


async def _begin(job: _StreamJob, pool: Pool, lease: Lease) -> ReadStream:
    # Limits the rows that are in memory at once: a single one, or several small ones.
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


async def _open(job: _StreamJob, pool: Pool, lease: Lease) -> ReadStream:
    connection, request = lease.connection, job.request
    statement = Statement(request.sql, request.params)
    stream = ReadStream(connection, pool.catalog, request.encoding, request.max_rows, SAFE_SNAPSHOT_BUDGET_MS)
    try:
        await stream.open(statement)
    except NoSafeSnapshot:
        _check_time(job, lease)
        await run_command(connection, b"rollback")
        # Unless its snapshot becomes safe, this transaction can make others fail, so it gets the time limit of an
        # ordinary statement.
        lease.live_until(job.deadline(job.limits.statement_timeout_ms))
        stream = ReadStream(connection, pool.catalog, request.encoding, request.max_rows)
        await stream.open(statement)
    return stream


async def _pass_on(job: _StreamJob, lease: Lease, stream: ReadStream, receiver: Receiver) -> StreamEnd:
    max_rows = job.request.max_rows
    count = 0
    truncated = False
    while (rows := await stream.next_rows()) is not None:
        # Between two FETCHes there is nothing to cancel, so check here.
        _check_time(job, lease)
        if max_rows is not None and count + len(rows) > max_rows:
            # One extra row proves that there are more.
            truncated = True
            rows = rows[: max_rows - count]
        count += len(rows)
        job.row_count, job.size_bytes = count, job.size_bytes + sum(map(len, rows))
        await receiver.take(rows)
    return StreamEnd(await stream.close(), count, truncated)


def _check_time(job: _StreamJob, lease: Lease) -> None:
    if lease.ended_for is not None:
        raise _timeout(job)


def _session_state(job: _StreamJob) -> SessionState:
    quick = time.monotonic() - job.began_s < WITHOUT_CODE_FOR_S
    return (
        job.classification.state_without_code
        if job.place.without_code and job.place.certain and quick
        else job.classification.session_state
    )


def _to_error(error: ServiceError | ResultTooLarge, reason: Reason | None, job: _StreamJob) -> ServiceError:
    """The error to report. If we ended the statement ourselves, it names our reason. Nothing was changed."""
    if isinstance(error, ResultTooLarge):
        return LimitError(
            "result_too_large",
            f"A row, or a batch of rows of different sizes, exceeds {job.limits.result_bytes} bytes,"
            f" the {job.tier} tier's limit.",
            outcome=Outcome.ROLLED_BACK,
        )
    return _timeout(job) if reason is Reason.DEADLINE else error


def _timeout(job: _StreamJob) -> LimitError:
    return LimitError(
        "statement_timeout",
        f"The stream did not finish within {round((time.monotonic() - job.began_s) * 1000)} ms, its time limit,"
        f" and was cancelled (tier {job.tier!r}).",
        outcome=Outcome.ROLLED_BACK,
    )
