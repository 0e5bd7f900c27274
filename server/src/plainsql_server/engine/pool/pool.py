"""Connection pools: one per address, that is, per database and role on a cell.

    async with pools.for_address(address, organization_id).lease(organization_limit, deadline) as lease:
        lease.connection.send_query(…)

After a request, its connection is reused only if the session is idle (or its statement ended by a completed cancel
request) and was proven clean or has been cleaned. Otherwise it is closed. Tenants never share a connection, so session
state left behind could only be seen by the same tenant. It is removed all the same.
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
from plainsql_server.core.errors import EngineError, LimitError, ServiceError, described
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

# Looked up once: enum member lookups cost measurable time.
_SEQUENCES = SessionState.SEQUENCES
_SESSION = SessionState.SESSION
_EVERYTHING = SessionState.EVERYTHING
# How long session cleanup may take. It runs after the response has been sent.
_CLEAN_TIMEOUT_S = 5.0
# An idle backend costs the cell about 4 MB, opening one about 3 ms. One minute keeps the connections that are in use.
_IDLE_LIFE_S = 60.0
_SWEEP_EVERY_S = 5.0
# Far more than opening a connection takes. Only a deadline shorter than this can be the reason that opening failed.
_CONNECTING_TAKES_S = 0.1


_T = TypeVar("_T")


class Reason(StrEnum):
    """Why a statement was cancelled or terminated before it completed. The texts are part of error messages."""

    DEADLINE = "its deadline passed"
    TOO_LARGE = "its result is too large"
    CUT_SHORT = "enough rows were read"
    GONE = "the request was abandoned"


_DEADLINE = Reason.DEADLINE


class Lease:
    """One request's use of one connection: `async with pool.lease(…) as lease`.

    On exit, the connection returns to its pool if its exchanges were read to their end and no session state was left
    behind. It is cleaned first if `session_state` says so, and closed in every other case.
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
        # Until the statement has been classified, assume the worst.
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
        # Measured from here, because waiting for a failover says nothing about how long a slot is held.
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
            # The statement may have renamed a type, so the next request must look types up again.
            pool.catalog.forget()
        if connection.is_open and not connection.is_settled:
            # The request was abandoned while its statement was running: read the rest of the exchange here.
            pool.cell.start(_read_out(connection))
            self.interrupt(Reason.GONE)
        if self._interruption is not None:
            # Wait for the interrupt to finish: a late cancel must not hit another request.
            session_state = max(self.session_state, _SESSION)
            self._interruption.add_done_callback(lambda task: pool.recover(task, connection, session_state, started_s))
        elif not connection.is_open:
            pool.discard(connection, started_s)
        else:
            pool.clean_and_release(connection, self.session_state, started_s)

    @property
    def has_company(self) -> bool:
        """Whether the organization may hold another lease in this process at the same time."""
        queue = self._pool.queue
        return min(queue.organization.max_running, queue.max_running) > 1

    def live_until(self, deadline: Deadline) -> None:
        """Replaces the deadline. For streams, whose duration says nothing about how long a slot is usually held."""
        self._timer.cancel()
        self._deadline = deadline
        self._timer = self._pool.loop.call_later(deadline.left_s(), self.interrupt, Reason.DEADLINE)
        self._started_s = 0.0

    def interrupt_after(self, delay_ms: int, reason: Reason) -> None:
        """Interrupts the statement after a delay, unless the deadline comes first. Replaces the deadline's timer."""
        delay_s = delay_ms / 1000
        if delay_s < self._deadline.left_s():
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.interrupt, reason)

    def interrupt(self, reason: Reason) -> None:
        """Cancels the request's running statement, or terminates its backend. Its results must still be read.

        If called again, does nothing: the first reason stays.
        """
        if self._interruption is None:
            self.ended_for = reason
            self.connection.is_ended = True
            self._interruption = self._pool.cell.start(self._pool.interrupt(self.connection))


class StreamTurn:
    """A stream slot of an organization: `async with pool.stream_turn(…)`."""

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
        # Last in, first out: the most recently used connection is reused, and the others age and are closed.
        self.idle: list[Connection] = []
        self.open_count = 0
        # Held by the one request that is being retried now; see `data_plane/retry.py`.
        self.retry_lane = asyncio.Lock()

    @property
    def is_in_use(self) -> bool:
        return self.open_count > 0 or self.queue.is_here or self.stream_queue.is_here

    def lease(self, organization_limit: int, deadline: Deadline) -> Lease:
        """A lease for one request. `organization_limit` is how many the organization may hold across all nodes."""
        # Each process gets an equal share, at least one, so the sum stays within the limit.
        self.cell.admission.limit(self.queue, max(1, organization_limit // self.cell.processes))
        return Lease(self, deadline)

    def stream_turn(self, organization_limit: int, deadline: Deadline) -> "StreamTurn":
        """A stream slot, to acquire before the lease: a slow reader may hold both for a long time."""
        self.cell.stream_admission.limit(self.stream_queue, max(1, organization_limit // self.cell.processes // 2))
        return StreamTurn(self, deadline)

    def take_idle(self) -> Connection | None:
        """Takes a usable idle connection, for a request that holds a slot. Returns None if there is none."""
        place = self.cell.leader.place
        while self.idle and place is not None:
            connection = self.idle.pop()
            self.cell.no_longer_idle(connection)
            if connection.place == place and connection.check():
                return connection
            self._close(connection)
        return None

    async def open(self, deadline: Deadline) -> Connection:
        """Opens a connection, for a request that holds a slot. Raises EngineError if that fails.

        Raises LimitError if the deadline left no time for it.
        """
        self.cell.make_room()
        self._count(+1)
        left_s = deadline.left_s()
        try:
            return await self.cell.leader.connect(self._ways, self.cell.connect_timeout_ms / 1000, left_s)
        except BaseException as error:
            self._count(-1)
            if isinstance(error, EngineError) and left_s < _CONNECTING_TAKES_S and not deadline.left_s():
                # The deadline was too short; the server may be fine.
                raise _no_time_to_connect() from error
            raise

    async def open_apart(self) -> Connection:
        """Opens a connection to the primary outside the pool. The caller must close it."""
        timeout_s = self.cell.connect_timeout_ms / 1000
        return await self.cell.leader.connect(self._ways, timeout_s, timeout_s)

    def release(self, connection: Connection, started_s: float) -> None:
        """Takes back a clean connection and releases the slot that was in use since `started_s`."""
        self.idle.append(connection)
        self.cell.now_idle(connection, self)
        self.cell.admission.release(self.queue, started_s)

    def discard(self, connection: Connection, started_s: float) -> None:
        """Closes a connection that must not be reused, and releases its slot."""
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
        """Cleans a connection whose statement was cancelled, or discards it if more than a cancel request was needed.

        A backend that is still running keeps its slot until it exits. Otherwise a tenant could accumulate such backends
        up to its role's connection limit.
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
            self._report("cancelling a statement failed", error)
            return Ending()
        return interruption.result()

    def _report(self, what: str, error: BaseException) -> None:
        context = f"{what}: {described(error)}"
        self.cell.observe(Failure(now(), "failure", "engine.pool", context))

    async def interrupt(self, connection: Connection) -> Ending:
        """Stops the statement that one of the pool's connections is running."""
        ending = await interrupt(connection, self._ways[connection.place], has_replicas=len(self._ways) > 1)
        if ending.runs_on_pid:
            self.cell.leader.suspect()
        return ending

    def clean_and_release(self, connection: Connection, session_state: SessionState, started_s: float) -> None:
        """Cleans a connection in the background, then takes it back, or closes it if that fails."""
        self.cell.start(self._clean(connection, session_state, started_s))

    def close_idle(self, connection: Connection) -> None:
        """Closes one of the pool's idle connections."""
        self.idle.remove(connection)
        self._close(connection)

    async def _clean(self, connection: Connection, session_state: SessionState, started_s: float) -> None:
        try:
            async with asyncio.timeout(_CLEAN_TIMEOUT_S):
                await clean(connection, session_state)
            is_clean = connection.is_open and connection.is_idle
            connection.is_ended = False
        except Exception as error:
            # Whatever failed, the slot must be released.
            self._report("session cleanup failed", error)
            is_clean = False
        if is_clean:
            self.release(connection, started_s)
        else:
            self.discard(connection, started_s)

    async def _wait_for_end(self, backend_pid: int, connection: Connection) -> None:
        try:
            self.cell.observe(Failure(now(), "failure", "engine.pool", "a backend ignored pg_terminate_backend"))
            await gone(
                backend_pid, self._ways[connection.place], lambda: self.cell.leader.is_elsewhere(connection.place)
            )
        finally:
            # 0.0: the wait says nothing about how long a slot is usually held. It also served as the penalty.
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
    """The pools of one cell, which share its connection limit and its admission queue."""

    def __init__(self, address: Address, limits: "PoolLimits", connect_timeout_ms: int, observe: Observe) -> None:
        self._name = address.cell_name
        self.leader = Leader(probes(address.cell_conninfo))
        self.admission = AdmissionQueue(limits.cell_connections, limits.cell_waiting)
        self.reservations = Reservations(limits.cell_connections)
        # Streams may use half of everything: of the cell's slots, of an organization's and of a pool's. So clients that
        # do not read leave room for other requests.
        self.stream_admission = AdmissionQueue(max(1, limits.cell_connections // 2), limits.cell_waiting)
        self.pool_limit = limits.pool_connections
        self.processes = limits.processes
        self.connect_timeout_ms = connect_timeout_ms
        self.observe = observe
        self.open_count = 0
        self._max_open = limits.cell_connections
        self._pools: dict[Address, Pool] = {}
        # Every idle connection of the cell, least recently used first.
        self._idle: OrderedDict[Connection, tuple[Pool, float]] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Tasks that wait for backends which ignore termination. `close` cancels them.
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
        """Closes the least recently used idle connection if the cell has reached its connection limit."""
        if self.open_count >= self._max_open and self._idle:
            connection, (pool, _) = self._idle.popitem(last=False)
            pool.close_idle(connection)

    def close_idle(self, idle_life_s: float) -> None:
        """Closes connections that have been idle for `idle_life_s`, and drops pools that are no longer in use."""
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
        """Runs a background task. `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def outlive(self, wait: Coroutine[Any, Any, None]) -> None:
        """Runs a background task that may never end. `close` cancels it."""
        task = asyncio.get_running_loop().create_task(wait)
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def load(self) -> CellLoad:
        running, streams = self.admission.running, self.stream_admission.running
        return CellLoad(self._name, self.open_count, running, self.admission.waiting, len(self._pools), streams)

    async def close(self) -> None:
        """Waits for the background tasks, then closes all idle connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wait in list(self._waits):
            wait.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)
        await self.leader.close()
        self.close_idle(idle_life_s=-1)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of one process: connections per pool and per cell, and waiting requests per cell.

    `processes` is the number of processes among which an organization's limit is divided.
    """

    pool_connections: int
    cell_connections: int
    cell_waiting: int
    processes: int = 1


class Pools:
    """All pools of this process. Each is created on first use."""

    def __init__(self, limits: PoolLimits, connect_timeout_ms: int, observe: Observe) -> None:
        self._limits = limits
        self._connect_timeout_ms = connect_timeout_ms
        self._observe = observe
        self._cells: dict[str, CellPools] = {}

    def for_address(self, address: Address, organization_id: str) -> Pool:
        """The pool for an address. An address belongs to one organization."""
        cell = self._cells.get(address.cell_conninfo)
        if cell is None:
            cell = self._cells[address.cell_conninfo] = CellPools(
                address, self._limits, self._connect_timeout_ms, self._observe
            )
        return cell.pool(address, organization_id)

    async def sweep(self) -> None:
        """Closes idle connections periodically, until cancelled at shutdown."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            for cell in self._cells.values():
                cell.close_idle(_IDLE_LIFE_S)

    def loads(self) -> list[CellLoad]:
        """The current load that this process puts on each cell."""
        return [cell.load() for cell in self._cells.values()]

    async def close(self) -> None:
        await asyncio.gather(*(cell.close() for cell in self._cells.values()))


def _no_time_to_connect() -> LimitError:
    return LimitError(
        "statement_timeout",
        "The deadline passed before the statement could run.",
        hint="Allow some tens of milliseconds: the service may have to open a connection to the database first.",
        retryable=True,
    )


async def _read_out(connection: Connection) -> None:
    try:
        await drain(connection)
    except (ServiceError, ResultTooLarge):
        # The cancel's own error, or a lost connection. The request was abandoned, so there is no one to report it to.
        return
