"""Pools of engine connections: one pool per address, which is a database and a role.

Owns who may use which connection and when one is thrown away: always, unless the borrower's request left
it idle and it was proven or made clean. Never shared between tenants, so what a request leaves behind
could only be seen by the same tenant, and is removed all the same.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Any

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError, ServiceError
from plainsql_server.core.observation import Failure, Observe
from plainsql_server.engine.address import Address
from plainsql_server.engine.catalog import Catalog
from plainsql_server.engine.connection import Connection
from plainsql_server.engine.execution import drain, run_command
from plainsql_server.engine.interrupt import interrupt
from plainsql_server.engine.queries import query_values

# How long cleaning may take; it runs after the answer has left.
_CLEAN_TIMEOUT_S = 5.0
# An idle backend costs the cell some 4 MB, opening one some 3 ms: a minute keeps what is in use.
_IDLE_LIFE_S = 60.0


class Reason(StrEnum):
    """Why a statement was ended before it was done."""

    DEADLINE = "deadline"
    TOO_LARGE = "too large"
    GONE = "nobody waits for it"


class Lease:
    """The loan of one connection to one request: `async with pool.lease(deadline) as lease`.

    On leaving, the connection goes back to its pool if the exchange was read to its end and nothing can
    have been left behind, is cleaned where `leave_unclean` said so, and is closed in every other case.
    """

    def __init__(self, pool: "Pool", deadline: Deadline) -> None:
        self._pool = pool
        self._deadline = deadline
        self._interruption: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unclean = False
        self.ended_for: Reason | None = None
        self.connection: Connection

    async def __aenter__(self) -> "Lease":
        self.connection = await self._pool.take(self._deadline)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._deadline.left_s(), self.interrupt, Reason.DEADLINE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        connection = self.connection
        if not connection.is_settled:
            # The request was given up while the engine still worked on it, so nobody reads the rest.
            self._pool.start(_read_out(connection))
            self.interrupt(Reason.GONE)
        if self._interruption is not None:
            self._pool.discard_after(self._interruption, connection)
        elif self._unclean or not connection.is_idle:
            self._pool.clean_and_return(connection)
        else:
            self._pool.give_back(connection)

    def leave_unclean(self) -> None:
        """Says that the statement may leave something behind in the session."""
        self._unclean = True

    def interrupt(self, reason: Reason) -> None:
        """Ends what the engine is doing for this request. Its results are still to be read; the first reason stays."""
        if self._interruption is None:
            self.ended_for = reason
            self._interruption = self._pool.start(interrupt(self.connection, self._pool.conninfo))


class Pool:
    """The connections to one address."""

    def __init__(self, address: Address, max_connections: int, connect_timeout_ms: int, observe: Observe) -> None:
        self.address = address
        self.conninfo = address.conninfo(connect_timeout_ms)
        self.catalog = Catalog(self._look_up)
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._max_connections = max_connections
        self._observe = observe
        # Last in, first out: the warmest connection is used and the rest grow idle and are closed.
        self._idle: list[tuple[Connection, float]] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def lease(self, deadline: Deadline) -> Lease:
        return Lease(self, deadline)

    async def take(self, deadline: Deadline) -> Connection:
        """A connection for one request. Raises EngineError if none can be opened, LimitError if none is free."""
        while True:
            while self._idle:
                connection, _ = self._idle.pop()
                if connection.check():
                    return connection
                self._discard(connection)
            if self._open_count < self._max_connections:
                return await self._open()
            await self._wait(deadline)

    def give_back(self, connection: Connection) -> None:
        self._idle.append((connection, time.monotonic()))
        self._wake_next()

    def clean_and_return(self, connection: Connection) -> None:
        """Cleans a connection after its answer has left, then gives it back, or closes it if that fails."""
        self.start(self._clean(connection))

    def discard_after(self, interruption: asyncio.Task[None], connection: Connection) -> None:
        """Closes a connection when its interruption is over; a late cancel must not hit another request."""
        interruption.add_done_callback(lambda _: self._discard(connection))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something beside the requests, kept alive until done or until the pool closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close_idle(self, idle_life_s: float = _IDLE_LIFE_S) -> None:
        """Closes connections that nobody used for a while."""
        too_old = time.monotonic() - idle_life_s
        stay = [(connection, since) for connection, since in self._idle if since > too_old]
        for connection, since in self._idle:
            if since <= too_old:
                self._discard(connection)
        self._idle = stay

    async def close(self) -> None:
        """Closes what is idle and waits for what runs beside the requests."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.close_idle(idle_life_s=-1)

    async def _open(self) -> Connection:
        self._open_count += 1
        try:
            return await Connection.open(self.conninfo, self._connect_timeout_s)
        except BaseException:
            self._open_count -= 1
            self._wake_next()
            raise

    async def _wait(self, deadline: Deadline) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(deadline.left_s()):
                await turn
        except TimeoutError:
            raise LimitError(
                "no_connection_free", "Every connection to this database stayed in use until the deadline.",
                retryable=True, retry_after_ms=1_000,
            ) from None  # fmt: skip
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.cancelled():
                self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _discard(self, connection: Connection) -> None:
        connection.close()
        self._open_count -= 1
        self._wake_next()

    async def _clean(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_CLEAN_TIMEOUT_S):
                if connection.in_failed_transaction:
                    await run_command(connection, b"rollback")
                await run_command(connection, b"discard all")
                connection.prepared.clear()
                self.catalog.forget()
        except (TimeoutError, ServiceError) as error:
            self._observe(Failure("engine.pool", f"cleaning failed: {error}"))
            self._discard(connection)
            return
        if connection.is_idle:
            self.give_back(connection)
        else:
            self._discard(connection)

    async def _look_up(self, sql: str, parameter: bytes) -> list[list[str]]:
        return await query_values(self.conninfo, sql, parameter, self._connect_timeout_s)


async def _read_out(connection: Connection) -> None:
    try:
        await drain(connection)
    except ServiceError:
        # The cancel's own error, or a lost connection: the request is given up, nobody is left to tell.
        return


class Pools:
    """Every pool of this process, made when first asked for."""

    def __init__(self, max_connections: int, connect_timeout_ms: int, observe: Observe) -> None:
        self._max_connections = max_connections
        self._connect_timeout_ms = connect_timeout_ms
        self._observe = observe
        self._pools: dict[Address, Pool] = {}

    def for_address(self, address: Address) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(address, self._max_connections, self._connect_timeout_ms, self._observe)
        return pool

    async def sweep(self, every_s: float = 10.0) -> None:
        """Closes idle connections for ever; cancelled at shutdown."""
        while True:
            await asyncio.sleep(every_s)
            for pool in self._pools.values():
                pool.close_idle()

    async def close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
