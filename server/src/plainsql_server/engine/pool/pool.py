"""Pools of engine connections: one pool per address, which is a database and a role.

Owns who uses which connection and when one is thrown away: always, unless the borrower's request left
it idle, or was ended by a cancel that has done its work, and it was proven or made clean. Never shared
between tenants, so what a request leaves behind could only be seen by the same tenant, and is removed
all the same.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, TypeVar

from plainsql_server.core.clock import Deadline, now
from plainsql_server.core.errors import EngineError, LimitError, ServiceError
from plainsql_server.core.observation import CellLoad, Failure, Observe
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.cleaning import clean
from plainsql_server.engine.connection.connection import Connection, ResultTooLarge
from plainsql_server.engine.connection.exchange import drain
from plainsql_server.engine.connection.interrupt import Ending, gone, interrupt
from plainsql_server.engine.connection.queries import values_and_close
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.admission_queue import AdmissionQueue
from plainsql_server.engine.pool.health import probes
from plainsql_server.engine.pool.leader import Leader
from plainsql_server.engine.pool.reservation import Reservations

# Looked up once: looking a member up in its enumeration shows.
_SEQUENCES = SessionState.SEQUENCES
_SESSION = SessionState.SESSION
_EVERYTHING = SessionState.EVERYTHING
# How long cleaning may take; it runs after the answer has left.
_CLEAN_TIMEOUT_S = 5.0
# An idle backend costs the cell some 4 MB, opening one some 3 ms: a minute keeps what is in use.
_IDLE_LIFE_S = 60.0
_SWEEP_EVERY_S = 5.0
# Far more than opening one takes: only a deadline that is nearer than this can be why it was not opened.
_CONNECTING_TAKES_S = 0.1


_T = TypeVar("_T")


class Reason(StrEnum):
    """Why a statement was ended before it was done."""

    DEADLINE = "deadline"
    TOO_LARGE = "too large"
    CUT_SHORT = "the rows that are wanted have come"
    GONE = "nobody waits for it"


_DEADLINE = Reason.DEADLINE


class Lease:
    """The loan of one connection to one request: `async with pool.lease(…) as lease`.

    On leaving, the connection goes back to its pool if the exchange was read to its end and nothing was
    left behind, is cleaned first where `session_state` says so, and is closed in every other case.
    """

    __slots__ = (
        "_deadline",
        "_interruption",
        "_pool",
        "_started_s",
        "_timer",
        "connection",
        "ended_for",
        "queue_us",
        "session_state",
    )  # fmt: skip

    _timer: asyncio.TimerHandle
    connection: Connection
    queue_us: int

    def __init__(self, pool: "Pool", deadline: Deadline) -> None:
        self._pool = pool
        self._deadline = deadline
        self._interruption: asyncio.Task[Ending] | None = None
        self._started_s = 0.0
        # Until the borrower has judged its statement, everything must be expected.
        self.session_state = _EVERYTHING
        self.ended_for: Reason | None = None

    async def __aenter__(self) -> "Lease":
        pool = self._pool
        admission = pool.cell.admission
        asked_s = time.monotonic()
        if not admission.try_acquire(pool.queue):
            await admission.acquire(pool.queue, self._deadline)
        try:
            self.connection = pool.take_idle() or await pool.open(self._deadline)
        except BaseException:
            admission.release(pool.queue, 0.0)
            raise
        # To wait for a cell whose leader is gone says nothing about how long a slot takes.
        self._started_s = lent_s = time.monotonic()
        self.queue_us = int((lent_s - asked_s) * 1_000_000)
        self._timer = pool.loop.call_later(self._deadline.at_s - lent_s, self.interrupt, _DEADLINE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        connection = self.connection
        if self._interruption is None and self.session_state <= _SEQUENCES and connection.is_idle:
            connection.must_discard_sequences |= self.session_state is _SEQUENCES
            self._pool.release(connection, self._started_s)
        else:
            self._release_carefully(connection)

    def _release_carefully(self, connection: Connection) -> None:
        pool, started_s = self._pool, self._started_s
        if self.session_state is _EVERYTHING:
            # It may have renamed a type; the next request must know.
            pool.catalog.forget()
        if connection.is_open and not connection.is_settled:
            # The request was given up while the engine still worked on it, so nobody reads the rest.
            pool.cell.start(_read_out(connection))
            self.interrupt(Reason.GONE)
        if self._interruption is not None:
            # A late cancel must not hit another request.
            session_state = max(self.session_state, _SESSION)
            self._interruption.add_done_callback(lambda task: pool.recover(task, connection, session_state, started_s))
        elif not connection.is_open:
            pool.discard(connection, started_s)
        else:
            pool.clean_and_release(connection, self.session_state, started_s)

    @property
    def has_company(self) -> bool:
        """Whether its organization may have another lease beside this one, in this process."""
        queue = self._pool.queue
        return min(queue.organization.max_running, queue.max_running) > 1

    def live_until(self, deadline: Deadline) -> None:
        """Sets another deadline. For streams, whose life says nothing about how long a slot takes."""
        self._timer.cancel()
        self._deadline = deadline
        self._timer = self._pool.loop.call_later(deadline.left_s(), self.interrupt, Reason.DEADLINE)
        self._started_s = 0.0

    def interrupt_after(self, delay_ms: int, reason: Reason) -> None:
        """Ends the statement unless it is done by then; takes the place of the deadline where it comes before it."""
        delay_s = delay_ms / 1000
        if delay_s < self._deadline.left_s():
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.interrupt, reason)

    def interrupt(self, reason: Reason) -> None:
        """Ends what the engine is doing for this request. Its results are still to be read; the first reason stays."""
        if self._interruption is None:
            self.ended_for = reason
            self.connection.is_ended = True
            self._interruption = self._pool.cell.start(self._pool.interrupt(self.connection))


class StreamTurn:
    """The right of an organization to one stream: `async with pool.stream_turn(…)`."""

    __slots__ = ("_deadline", "_pool", "_started_s")

    def __init__(self, pool: "Pool", deadline: Deadline) -> None:
        self._pool = pool
        self._deadline = deadline
        self._started_s = 0.0

    async def __aenter__(self) -> None:
        await self._pool.cell.stream_admission.acquire(self._pool.stream_queue, self._deadline)
        self._started_s = time.monotonic()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.cell.stream_admission.release(self._pool.stream_queue, self._started_s)


class Pool:
    """The connections to one address."""

    def __init__(self, address: Address, organization_id: str, cell: "CellPools") -> None:
        self.address = address
        self.cell = cell
        self.queue = cell.admission.tenant_queue(organization_id, cell.pool_limit)
        self.stream_queue = cell.stream_admission.tenant_queue(organization_id, max(1, cell.pool_limit // 2))
        self.loop = asyncio.get_running_loop()
        self._ways = address.ways(cell.connect_timeout_ms)
        self.catalog = Catalog(self._look_up)
        # Last in, first out: the warmest connection is used and the rest grow idle and are closed.
        self.idle: list[Connection] = []
        self.open_count = 0
        # Whoever holds it is the one request that is tried again now; see `data_plane/retry.py`.
        self.retry_lane = asyncio.Lock()

    @property
    def is_in_use(self) -> bool:
        return self.open_count > 0 or self.queue.is_here or self.stream_queue.is_here

    def lease(self, organization_limit: int, deadline: Deadline) -> Lease:
        """A connection for one statement of the pool's organization, which may run so many at once on all nodes."""
        # Each process has its share, so that the sum is never above the limit; one is the least that works.
        self.cell.admission.limit(self.queue, max(1, organization_limit // self.cell.processes))
        return Lease(self, deadline)

    def stream_turn(self, organization_limit: int, deadline: Deadline) -> "StreamTurn":
        """The right to one stream, to be had before a lease: a slow reader may hold it for long."""
        self.cell.stream_admission.limit(self.stream_queue, max(1, organization_limit // self.cell.processes // 2))
        return StreamTurn(self, deadline)

    def take_idle(self) -> Connection | None:
        """An idle connection that still works, for a request that has its slot; None if there is none."""
        place = self.cell.leader.place
        while self.idle and place is not None:
            connection = self.idle.pop()
            self.cell.no_longer_idle(connection)
            if connection.place == place and connection.check():
                return connection
            self._close(connection)
        return None

    async def open(self, deadline: Deadline) -> Connection:
        """A new connection, for a request that has its slot. Raises EngineError if it cannot be opened.

        Raises LimitError if the caller left no time for it.
        """
        self.cell.make_room()
        self._count(+1)
        left_s = deadline.left_s()
        try:
            return await self.cell.leader.connect(self._ways, self.cell.connect_timeout_ms / 1000, left_s)
        except BaseException as error:
            self._count(-1)
            if isinstance(error, EngineError) and left_s < _CONNECTING_TAKES_S and not deadline.left_s():
                # It is not the engine that is away.
                raise _no_time_to_connect() from error
            raise

    async def open_apart(self) -> Connection:
        """A connection beside those that are lent, to the server that leads; whoever asks for it closes it."""
        timeout_s = self.cell.connect_timeout_ms / 1000
        return await self.cell.leader.connect(self._ways, timeout_s, timeout_s)

    def release(self, connection: Connection, started_s: float) -> None:
        """Takes a clean connection back, and ends the slot that began at `started_s`."""
        self.idle.append(connection)
        self.cell.now_idle(connection, self)
        self.cell.admission.release(self.queue, started_s)

    def discard(self, connection: Connection, started_s: float) -> None:
        """Closes a connection that nobody may use again, and ends the slot."""
        if not connection.is_open:
            self.cell.leader.suspect()
        self._close(connection)
        self.cell.admission.release_with_penalty(self.queue, started_s)

    def recover(
        self,
        interruption: "asyncio.Task[Ending]",
        connection: Connection,
        session_state: SessionState,
        started_s: float,
    ) -> None:
        """Cleans a connection whose statement was ended, or discards it where that was not done by a mere cancel.

        If its backend runs on, the slot lasts as long as that: otherwise a tenant could have as many such backends as
        its role has connections.
        """
        ending = self._ending(interruption)
        if ending.runs_on_pid:
            self.cell.outlive(self._wait_for_end(ending.runs_on_pid, connection))
        elif ending.is_clean and connection.is_open and connection.is_settled:
            self.clean_and_release(connection, session_state, started_s)
        else:
            self.discard(connection, started_s)

    def _ending(self, interruption: "asyncio.Task[Ending]") -> Ending:
        if interruption.cancelled():
            return Ending()
        if error := interruption.exception():
            self._report("ending a statement failed", error)
            return Ending()
        return interruption.result()

    def _report(self, what: str, error: BaseException) -> None:
        context = f"{what}: {type(error).__name__}: {error}"
        self.cell.observe(Failure(now(), "failure", "engine.pool", context))

    async def interrupt(self, connection: Connection) -> Ending:
        """Ends what one of its connections is running."""
        ending = await interrupt(connection, self._ways[connection.place], has_replicas=len(self._ways) > 1)
        if ending.runs_on_pid:
            self.cell.leader.suspect()
        return ending

    def clean_and_release(self, connection: Connection, session_state: SessionState, started_s: float) -> None:
        """Cleans a connection after its answer has left, then takes it back, or closes it if that fails."""
        self.cell.start(self._clean(connection, session_state, started_s))

    def close_idle(self, connection: Connection) -> None:
        """Closes one of the idle connections."""
        self.idle.remove(connection)
        self._close(connection)

    async def _clean(self, connection: Connection, session_state: SessionState, started_s: float) -> None:
        try:
            async with asyncio.timeout(_CLEAN_TIMEOUT_S):
                await clean(connection, session_state)
            is_clean = connection.is_open and connection.is_idle
            connection.is_ended = False
        except Exception as error:
            # Whatever it was, the slot must end.
            self._report("cleaning failed", error)
            is_clean = False
        if is_clean:
            self.release(connection, started_s)
        else:
            self.discard(connection, started_s)

    async def _wait_for_end(self, backend_pid: int, connection: Connection) -> None:
        try:
            self.cell.observe(Failure(now(), "failure", "engine.pool", "a backend did not heed its termination"))
            await gone(backend_pid, self._ways[connection.place])
        finally:
            # It says nothing about how long a slot takes, and is paid for.
            self._close(connection)
            self.cell.admission.release(self.queue, 0.0)

    def _close(self, connection: Connection) -> None:
        connection.close()
        self._count(-1)

    def _count(self, change: int) -> None:
        self.open_count += change
        self.cell.open_count += change

    async def _look_up(self, sql: str, parameter: bytes) -> list[list[str]]:
        return await values_and_close(await self.open_apart(), sql, parameter)


class CellPools:
    """The pools of one cell, which share its connections and its admission."""

    def __init__(self, address: Address, limits: "PoolLimits", connect_timeout_ms: int, observe: Observe) -> None:
        self._name = address.cell_name
        self.leader = Leader(probes(address.cell_conninfo))
        self.admission = AdmissionQueue(limits.cell_connections, limits.cell_waiting)
        self.reservations = Reservations(limits.cell_connections)
        # Streams may have half of everything: of the cell's slots, of an organization's and of a pool's, so that
        # clients that do not read leave room for the rest.
        self.stream_admission = AdmissionQueue(max(1, limits.cell_connections // 2), limits.cell_waiting)
        self.pool_limit = limits.pool_connections
        self.processes = limits.processes
        self.connect_timeout_ms = connect_timeout_ms
        self.observe = observe
        self.open_count = 0
        self._max_open = limits.cell_connections
        self._pools: dict[Address, Pool] = {}
        # Every idle connection of the cell, the one that was used longest ago first.
        self._idle: OrderedDict[Connection, tuple[Pool, float]] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Waits for backends that run on, which closing does not wait for.
        self._waits: set[asyncio.Task[None]] = set()

    def pool(self, address: Address, organization_id: str) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(address, organization_id, self)
        return pool

    def now_idle(self, connection: Connection, pool: Pool) -> None:
        self._idle[connection] = (pool, time.monotonic())

    def no_longer_idle(self, connection: Connection) -> None:
        del self._idle[connection]

    def make_room(self) -> None:
        """Closes the connection that was idle longest, if the cell has as many as it may have."""
        if self.open_count >= self._max_open and self._idle:
            connection, (pool, _) = self._idle.popitem(last=False)
            pool.close_idle(connection)

    def close_idle(self, idle_life_s: float) -> None:
        """Closes connections that nobody used for so long, and forgets pools that have none left."""
        too_old = time.monotonic() - idle_life_s
        while self._idle:
            connection, (pool, since) = next(iter(self._idle.items()))
            if since > too_old:
                break
            del self._idle[connection]
            pool.close_idle(connection)
        self._pools = {address: pool for address, pool in self._pools.items() if pool.is_in_use}
        self.admission.forget_the_idle({pool.queue.organization for pool in self._pools.values()})
        self.stream_admission.forget_the_idle({pool.stream_queue.organization for pool in self._pools.values()})

    def start(self, work: "Coroutine[Any, Any, _T]") -> "asyncio.Task[_T]":
        """Runs something beside the requests, kept alive until done or until the pools close."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def outlive(self, wait: Coroutine[Any, Any, None]) -> None:
        """Runs a wait that may never end."""
        task = asyncio.get_running_loop().create_task(wait)
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def load(self) -> CellLoad:
        running, streams = self.admission.running, self.stream_admission.running
        return CellLoad(self._name, self.open_count, running, self.admission.waiting, len(self._pools), streams)

    async def close(self) -> None:
        """Waits for what runs beside the requests, then closes what is idle."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wait in list(self._waits):
            wait.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)
        await self.leader.close()
        self.close_idle(idle_life_s=-1)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much one process may use: connections per pool and per cell, and requests that may wait per cell.

    And of how many processes it is one, that share what an organization may have.
    """

    pool_connections: int
    cell_connections: int
    cell_waiting: int
    processes: int = 1


class Pools:
    """Every pool of this process, made when first asked for."""

    def __init__(self, limits: PoolLimits, connect_timeout_ms: int, observe: Observe) -> None:
        self._limits = limits
        self._connect_timeout_ms = connect_timeout_ms
        self._observe = observe
        self._cells: dict[str, CellPools] = {}

    def for_address(self, address: Address, organization_id: str) -> Pool:
        """The pool of an address, all of whose users belong to one organization."""
        cell = self._cells.get(address.cell_conninfo)
        if cell is None:
            cell = self._cells[address.cell_conninfo] = CellPools(
                address, self._limits, self._connect_timeout_ms, self._observe
            )
        return cell.pool(address, organization_id)

    async def sweep(self) -> None:
        """Closes idle connections for ever; cancelled at shutdown."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            for cell in self._cells.values():
                cell.close_idle(_IDLE_LIFE_S)

    def loads(self) -> list[CellLoad]:
        """What this process uses of each cell now."""
        return [cell.load() for cell in self._cells.values()]

    async def close(self) -> None:
        await asyncio.gather(*(cell.close() for cell in self._cells.values()))


def _no_time_to_connect() -> LimitError:
    return LimitError(
        "statement_timeout",
        "The deadline passed before the statement could run.",
        hint="Allow some tens of milliseconds: a connection to the database may have to be opened first.",
        retryable=True,
    )


async def _read_out(connection: Connection) -> None:
    try:
        await drain(connection)
    except (ServiceError, ResultTooLarge):
        # The cancel's own error, or a lost connection: the request is given up, nobody is left to tell.
        return
