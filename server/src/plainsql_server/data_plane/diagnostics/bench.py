"""A small benchmark of a customer's database, run through the same executors as requests.

It is limited to a few seconds and to one run at a time per database. Every statement counts as a request against the
organization's rate limit, so measuring the service never gives an organization more than using it would.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import ConflictError, EngineError, ServiceError, StatementError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Shape
from plainsql_server.data_plane.diagnostics.probe_context import Executors
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.stream import Receiver
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement
from plainsql_server.limits.permits import Permits
from plainsql_server.limits.tiers import TIERS

MAX_ITERATIONS = 1_000
MAX_CONCURRENCY = 16
# The documented five seconds, minus the time to create and remove the temporary data, and the grace period for
# operations that have started.
_MEASURING_S = 3.5
_GRACE_S = 0.5
_ROWS = 1_000
_STREAMED_ROWS = 100
# Long enough for the rollback of an earlier benchmark, short enough that a second one does not wait for the first.
_LOCK_TIMEOUT_MS = 200
_LOCK_NOT_AVAILABLE = "55P03"
_LOCK_SCHEMA = "plainsql_bench_lock"


OperationName = Literal["point_read", "point_write", "transaction", "stream"]
Limit = Literal["time", "rate_limit"]


@dataclass(slots=True)
class Operation:
    """The measurements of one kind of operation."""

    name: OperationName
    took_us: list[int] = field(default_factory=list)
    errors: int = 0
    lasted_us: int = 0


@dataclass(slots=True)
class Measured:
    """The result of a benchmark. `limited_by` is what ended it early, if anything did."""

    operations: list[Operation] = field(default_factory=list)
    limited_by: Limit | None = None


class _NoPermit(Exception):
    """The organization has reached its rate limit."""


class _Nobody(Receiver):
    """Receives the rows of a stream and discards them."""

    async def begin(self, shape: Shape, queue_us: int, *, is_buffered: bool) -> None:  # noqa: ARG002  # the protocol's names
        return

    async def take(self, rows: Sequence[bytes]) -> None:  # noqa: ARG002
        return


class Benchmarks:
    """Runs benchmarks."""

    def __init__(self, executors: Executors, permits: Permits) -> None:
        self._executors = executors
        self._permits = permits
        self._running: set[str] = set()

    async def run(self, principal: Principal, database: str | None, iterations: int, concurrency: int) -> Measured:
        """Runs a benchmark. Raises ConflictError while another one runs on the database, or another ServiceError."""
        place = await self._executors.connections.place(principal, database)
        async with (
            self._only_one(place.database_id),
            self._executors.schemas.slot(principal),
            self._only_one_anywhere(principal, database),
            self._executors.schemas.schema(principal, database, _setup) as schema,
        ):
            return await self._measure(principal, _Work(database, schema), iterations, concurrency)

    @asynccontextmanager
    async def _only_one(self, database_id: str) -> AsyncIterator[None]:
        if database_id in self._running:
            raise _bench_running()
        self._running.add(database_id)
        try:
            yield
        finally:
            self._running.discard(database_id)

    @asynccontextmanager
    async def _only_one_anywhere(self, principal: Principal, database: str | None) -> AsyncIterator[None]:
        """Excludes other processes, with a schema that is created and never committed, so nothing is left behind."""
        async with self._executors.connections.open(principal, database) as service:
            service.require_company()
            try:
                await service.run(
                    b"begin isolation level read committed read write",
                    b"set local lock_timeout = %d" % _LOCK_TIMEOUT_MS,
                    f"create schema {_LOCK_SCHEMA}".encode(),
                )
            except StatementError as error:
                if error.diagnosis.sqlstate == _LOCK_NOT_AVAILABLE:
                    raise _bench_running() from error
                raise
            yield
            # If something failed, the connection is closed, which also rolls back.
            await service.run(b"rollback")

    async def _measure(self, principal: Principal, work: "_Work", iterations: int, concurrency: int) -> Measured:
        measured = Measured()
        end_s = time.monotonic() + _MEASURING_S

        def left_ms() -> int:
            return max(1, int((end_s + _GRACE_S - time.monotonic()) * 1000))

        executors = self._executors
        kinds: dict[OperationName, Callable[[], Awaitable[object]]] = {
            "point_read": lambda: executors.queries.run(principal, work.point_read(left_ms())),
            "point_write": lambda: executors.queries.run(principal, work.point_write(left_ms())),
            "transaction": lambda: executors.transactions.run(principal, work.transaction(left_ms())),
            "stream": lambda: executors.streams.run(principal, work.stream(left_ms()), _Nobody()),
        }
        for at, (name, run) in enumerate(kinds.items()):
            operation = Operation(name)
            measured.operations.append(operation)
            now_s = time.monotonic()
            until_s = now_s + (end_s - now_s) / (len(kinds) - at)
            series = _Series(operation, run, iterations, until_s, lambda: self._take_permit(principal))
            began_us = monotonic_us()
            # Streams may use only half of an organization's slots, and more of them would have to wait.
            at_once = max(1, concurrency // 2) if name == "stream" else concurrency
            measured.limited_by = await series.run(at_once) or measured.limited_by
            operation.lasted_us = monotonic_us() - began_us
        return measured

    async def _take_permit(self, principal: Principal) -> None:
        limit = TIERS[principal.tier].requests_per_minute
        if limit is None:
            return
        organization_id = principal.organization_id
        permit = await self._permits.take(organization_id, limit)
        if not permit.granted:
            raise _NoPermit


@dataclass(frozen=True, slots=True)
class _Work:
    """The requests that are measured, on a table in a temporary schema."""

    database: str | None
    schema: str

    def point_read(self, left_ms: int) -> StatementJob:
        return self._query(f"select id, body from {self.schema}.rows where id = $1", left_ms)

    def point_write(self, left_ms: int) -> StatementJob:
        return self._query(f"update {self.schema}.rows set written = written + 1 where id = $1", left_ms)

    def stream(self, left_ms: int) -> StatementJob:
        sql = f"select id, body from {self.schema}.rows where id <= {_STREAMED_ROWS}"
        return StatementJob(sql, database=self.database, timeout_ms=left_ms)

    def transaction(self, left_ms: int) -> TransactionRequest:
        read, write = self.point_read(left_ms), self.point_write(left_ms)
        statements = [TransactionStatement(read.sql, read.params), TransactionStatement(write.sql, read.params)]
        return TransactionRequest(statements, self.database, timeout_ms=left_ms)

    def _query(self, sql: str, left_ms: int) -> StatementJob:
        chosen = b"%d" % random.randint(1, _ROWS)
        return StatementJob(sql, [chosen], self.database, timeout_ms=left_ms)


class _Series:
    """Repeats one kind of operation, several at once."""

    def __init__(
        self, operation: Operation, work: Callable[[], Awaitable[object]], iterations: int, until_s: float,
        take_permit: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._operation = operation
        self._work = work
        self._left = iterations
        self._until_s = until_s
        self._take_permit = take_permit

    async def run(self, concurrency: int) -> Limit | None:
        """Runs the series. Returns what ended it early, or None."""
        ended = await asyncio.gather(*(self._repeat() for _ in range(concurrency)))
        return next((reason for reason in ended if reason is not None), None)

    async def _repeat(self) -> Limit | None:
        while self._left > 0:
            if time.monotonic() >= self._until_s:
                return "time"
            self._left -= 1
            try:
                await self._take_permit()
            except _NoPermit:
                return "rate_limit"
            await self._once()
        return None

    async def _once(self) -> None:
        began_us = monotonic_us()
        try:
            await self._work()
        except EngineError:
            # PostgreSQL is unavailable, so there is nothing to measure.
            raise
        except ServiceError:
            self._operation.errors += 1
        else:
            self._operation.took_us.append(monotonic_us() - began_us)


def _setup(schema: str) -> list[bytes]:
    return [
        f"create table {schema}.rows (id int primary key, body text not null, written int not null)".encode(),
        f"insert into {schema}.rows select n, 'row ' || n, 0 from generate_series(1, {_ROWS}) n".encode(),
        f"analyze {schema}.rows".encode(),
    ]


def _bench_running() -> ConflictError:
    return ConflictError(
        "bench_running", "A benchmark is already running on this database. Only one can run at a time.",
        retryable=True, retry_after_ms=5_000,
    )  # fmt: skip
