"""Connection pools: one per address, that is, per database and role on a cell.

    async with pools.for_address(address, organization_id).lease(organization_limit, deadline) as lease:
        lease.connection.send_query(…)

After a request, its connection is reused only if the session is idle (or its statement ended by a completed cancel
request) and was proven clean or has been cleaned. Otherwise it is closed. Tenants never share a connection, so session
state left behind could only be seen by the same tenant. It is removed all the same.
"""

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING

from plainsql_server.core.clock import Deadline, now
from plainsql_server.core.errors import EngineError, LimitError, ServiceError, described
from plainsql_server.core.observation import FailureObserved
from plainsql_server.core.share import WHOLE
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.cleaning import clean
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import drain
from plainsql_server.engine.connection.interrupt import Ending, InterruptReason, gone, interrupt
from plainsql_server.engine.connection.queries import values_and_close
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.sqlstate import engine_unavailable
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.planner import TOUCH_EVERY_S

if TYPE_CHECKING:
    from plainsql_server.engine.pool.pools import CellPools

# Looked up once: in Python 3.11, each lookup of an enum member is a function call.
_SEQUENCES = SessionState.SEQUENCES
_SESSION = SessionState.SESSION
_EVERYTHING = SessionState.EVERYTHING
# How long session cleanup may take. It runs after the response has been sent.
_CLEAN_TIMEOUT_S = 5.0
# Far more than opening a connection takes. Only a deadline shorter than this can be the reason that opening failed.
_CONNECTING_TAKES_S = 0.1
# A request that has to wait needs more than this.
_WAITING_TAKES_S = 0.005
# How long a pool without connections is kept, so that the planner knows how much its database is used.
_REMEMBERED_S = 120.0
# How early a timer may fire: the event loop rounds to milliseconds.
_TIMER_EARLY_S = 0.002
# How long after the deadline a lookup of types ends. By then the statement's own interrupt has begun, so the request
# reports the deadline as the reason.
_LOOK_UP_GRACE_S = 0.05

_DEADLINE = InterruptReason.DEADLINE


class Lease:
    """One request's use of one connection: `async with pool.lease(…) as lease`.

    On exit, the connection returns to its pool if its exchanges were read to their end and no session state was left
    behind. It is cleaned first if `session_state` says so, and closed in every other case.
    """

    __slots__ = (
        "_asked_s",
        "_deadline",
        "_has_connection",
        "_has_slot",
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
        self._asked_s = 0.0
        self._interruption: asyncio.Task[Ending] | None = None
        self._has_slot = False
        self._has_connection = False
        self._started_s = 0.0
        # Until the statement has been classified, assume the worst.
        self.session_state = _EVERYTHING
        self.ended_for: InterruptReason | None = None

    @classmethod
    def with_slot(cls, pool: "Pool", deadline: Deadline, asked_s: float) -> "Lease":
        """A lease for a request of the fast lane that has its slot. Enter it, or call `end`."""
        lease = cls(pool, deadline)
        lease._asked_s = asked_s
        lease._has_slot = True
        return lease

    @classmethod
    def with_connection(
        cls, pool: "Pool", deadline: Deadline, asked_s: float, connection: Connection, started_s: float
    ) -> "Lease":
        """A lease for a request of the fast lane that has its slot and its connection. Enter it, or call `end`."""
        lease = cls.with_slot(pool, deadline, asked_s)
        lease._hold(connection, started_s)
        return lease

    async def __aenter__(self) -> "Lease":
        if self._has_connection:
            return self
        pool = self._pool
        if not self._has_slot:
            self._asked_s = time.monotonic()
            await pool.acquire(self._deadline)
        connection = await pool.take(self._deadline)
        # Measured from here, because waiting for a failover says nothing about how long a slot is held.
        self._hold(connection, time.monotonic())
        return self

    def _hold(self, connection: Connection, started_s: float) -> None:
        self.connection = connection
        self._has_connection = True
        self._started_s = started_s
        self.queue_us = int((started_s - self._asked_s) * 1_000_000)
        connection.deadline = self._deadline
        self._timer = self._pool.loop.call_later(self._deadline.left_s(), self.interrupt, _DEADLINE)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Returns the connection to its pool, cleans it first, or closes it."""
        if not self._has_connection:
            self._pool.admission.release(self._pool.queue, 0.0)
            return
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
            self.interrupt(InterruptReason.GONE)
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
        return min(queue.organization.max_running, queue.max_slots) > 1

    def live_until(self, deadline: Deadline) -> None:
        """Replaces the deadline. For streams, whose duration says nothing about how long a slot is usually held."""
        self._timer.cancel()
        self._deadline = self.connection.deadline = deadline
        self._timer = self._pool.loop.call_later(deadline.left_s(), self.interrupt, InterruptReason.DEADLINE)
        self._started_s = 0.0

    def interrupt_after(self, delay_ms: int, reason: InterruptReason) -> None:
        """Interrupts the statement after a delay, unless the deadline comes first. Replaces the deadline's timer."""
        delay_s = delay_ms / 1000
        if delay_s < self._deadline.left_s():
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.interrupt, reason)

    def interrupt(self, reason: InterruptReason) -> None:
        """Cancels the request's running statement, or terminates its backend. Its results must still be read.

        If called again, does nothing: the first reason stays.
        """
        if self._interruption is None:
            self.ended_for = reason
            self.connection.is_ended = True
            self._interruption = self._pool.cell.start(self._pool.interrupt(self.connection))


class StreamSlot:
    """A stream slot of an organization: `async with pool.stream_slot(…)`."""

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
        self._pool.cell.stream_admission.release(self._pool.stream_queue, time.monotonic() - self._started_s)


class Pool:
    """The connections to one address."""

    def __init__(self, address: Address, organization_id: str, cell: "CellPools") -> None:
        self.address = address
        self.cell = cell
        self.admission = cell.admission
        # Last in, first out: the most recently used connection is reused, and the others age and are closed.
        self.idle: list[Connection] = []
        self.queue = cell.admission.tenant_queue(organization_id, cell.pool_limit, self.idle)
        self.stream_queue = cell.stream_admission.tenant_queue(organization_id, max(1, cell.pool_limit // 2))
        self.loop = asyncio.get_running_loop()
        self._organization_limit = 0
        self._conninfos = address.conninfos(cell.connect_timeout_ms)
        self.catalog = Catalog(self._look_up)
        # Held by the one request that is being retried now; see `data_plane/retry.py`.
        self.retry_lane = asyncio.Lock()

    @property
    def open_count(self) -> int:
        return self.queue.open_count

    def is_in_use(self, now_s: float) -> bool:
        """Whether it has connections or requests, or had some a short while ago."""
        is_here = self.open_count > 0 or self.queue.is_here or self.stream_queue.is_here
        return is_here or now_s - self.queue.used_s < _REMEMBERED_S

    def lease(self, organization_limit: int, deadline: Deadline) -> Lease:
        """A lease for one request. `organization_limit` is how many the organization may hold across all nodes."""
        self.limit(organization_limit)
        return Lease(self, deadline)

    def limit(self, organization_limit: int) -> None:
        """Sets how many leases the organization may hold across all nodes."""
        # Each process gets its share, and may run one in any case: with many processes, the sum exceeds the limit.
        self._organization_limit = organization_limit
        self.admission.limit(self.queue, max(1, organization_limit * self.cell.held // WHOLE))

    def take_share(self) -> None:
        """Keeps to the share that this process has now, also for the requests that wait."""
        if self._organization_limit:
            self.limit(self._organization_limit)

    def stream_slot(self, organization_limit: int, deadline: Deadline) -> "StreamSlot":
        """A stream slot, to acquire before the lease: a slow reader may hold both for a long time."""
        self.cell.stream_admission.limit(self.stream_queue, max(1, organization_limit * self.cell.held // WHOLE // 2))
        return StreamSlot(self, deadline)

    async def acquire(self, deadline: Deadline) -> None:
        """Takes a slot, at once if the pool has or may have one. Raises LimitError if none becomes free in time."""
        admission = self.admission
        if not admission.take_free(self.queue):
            if self.queue.slots == 0:
                self.cell.planning.give_first(self.queue)
            left_s = deadline.left_s()
            try:
                await admission.acquire(self.queue, deadline)
            except LimitError as error:
                if left_s < _WAITING_TAKES_S:
                    # Another request had the connection. That is no overload: the deadline was too short to wait.
                    raise _no_time_to_connect() from error
                raise

    async def take(self, deadline: Deadline) -> Connection:
        """A connection for a request that holds a slot: an idle one, or a new one. If it raises, the slot is released.

        Raises EngineError if no connection can be opened, and LimitError if the deadline left no time for it.
        """
        while True:
            open_before = self.open_count
            connection = self._take_idle()
            if connection is not None:
                return connection
            if self.open_count == open_before:
                break
            # All that were idle are broken. The planner gave the slot with a connection, not for opening another one.
            self._give_up_slot()
            await self.acquire(deadline)
        try:
            return await self._open(deadline)
        except BaseException:
            self._give_up_slot()
            raise

    def _give_up_slot(self) -> None:
        """Releases a slot that has no connection. Whose turn it is to open one, the planner decides."""
        self.cell.planner.give_back(self.queue, 1)
        self.admission.release(self.queue, 0.0)
        self.cell.planning.look_again()

    def _take_idle(self) -> Connection | None:
        """Takes a usable idle connection, for a request that holds a slot. Returns None if there is none."""
        place, found = self.cell.leader.place, None
        while self.idle and place is not None and found is None:
            connection = self.idle.pop()
            if connection.place == place and connection.check():
                found = connection
            else:
                self._close(connection)
        if self.queue.slots > self.open_count:
            # This request may need one to open a connection; those of the others that were closed are free.
            self.cell.planner.give_back_unused(self.queue)
        return found

    async def _open(self, deadline: Deadline) -> Connection:
        """Opens a connection, for a request that holds a slot."""
        planner = self.cell.planner
        if self.idle and self.open_count + self.queue.opening >= self.queue.slots:
            # While the primary is unknown, an idle connection is not used, but it may not be one more than allowed.
            self.close_longest_idle()
        left_s = deadline.left_s()
        opening = planner.begin_opening(self.queue, time.monotonic())
        try:
            connection = await self.cell.leader.connect(self._conninfos, self.cell.connect_timeout_ms / 1000, left_s)
        except EngineError as error:
            if left_s < _CONNECTING_TAKES_S and deadline.left_s() < _TIMER_EARLY_S:
                # The deadline was too short; the server may be fine.
                raise _no_time_to_connect() from error
            planner.is_failing = True
            raise
        else:
            planner.opened(self.queue)
            connection.organization_id = self.queue.organization.name
            return connection
        finally:
            planner.end_opening(self.queue, opening)
            self.cell.planning.look_again()

    async def open_apart(self) -> Connection:
        """Opens a connection to the primary outside the pool. The caller must close it."""
        timeout_s = self.cell.connect_timeout_ms / 1000
        return await self.cell.leader.connect(self._conninfos, timeout_s, timeout_s)

    def release(self, connection: Connection, started_s: float) -> None:
        """Takes back a clean connection and releases the slot that was in use since `started_s`."""
        now_s, queue = time.monotonic(), self.queue
        connection.idle_since_s = now_s
        is_kept = not connection.is_grown
        if is_kept:
            self.idle.append(connection)
        else:
            # Its buffer is the size of the longest row that it had, and the fast lane would fill it in one read.
            self._close_with_slot(connection)
        if now_s - queue.used_s > TOUCH_EVERY_S:
            queue.touch(now_s)
        self.admission.release(queue, now_s - started_s if started_s else 0.0)
        if not is_kept:
            self.cell.planning.look_again()

    def release_unclean(self, connection: Connection, session_state: SessionState, started_s: float) -> None:
        """Takes back a connection whose last statement was read to its end and may have left something behind."""
        if session_state is _EVERYTHING:
            # The statement may have renamed a type, so the next request must look types up again.
            self.catalog.forget()
        self.clean_and_release(connection, session_state, started_s)

    def discard(self, connection: Connection, started_s: float) -> None:
        """Closes a connection that must not be reused, and releases its slot."""
        if not connection.is_open:
            self.cell.leader.suspect()
        self._close_with_slot(connection)
        self.admission.release_with_penalty(self.queue, time.monotonic() - started_s if started_s else 0.0)
        self.cell.planning.look_again()

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
        self.cell.observe(FailureObserved(now(), "failure", "engine.pool", context))

    async def interrupt(self, connection: Connection) -> Ending:
        """Stops the statement that one of the pool's connections is running."""
        ending = await interrupt(connection, self._conninfos[connection.place], has_replicas=len(self._conninfos) > 1)
        if ending.runs_on_pid:
            self.cell.leader.suspect()
        return ending

    def clean_and_release(self, connection: Connection, session_state: SessionState, started_s: float) -> None:
        """Cleans a connection in the background, then takes it back, or closes it if that fails."""
        self.cell.start(self._clean(connection, session_state, started_s))

    def close_longest_idle(self) -> None:
        """Closes the connection that has been idle longest."""
        self._close(self.idle.pop(0))

    def close_idle(self, until_s: float) -> None:
        """Closes the connections that have been idle since then, or longer."""
        while self.idle and self.idle[0].idle_since_s <= until_s:
            self.close_longest_idle()
            self.cell.planner.give_back_unused(self.queue)

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
            self.cell.observe(
                FailureObserved(now(), "failure", "engine.pool", "a backend ignored pg_terminate_backend")
            )
            await gone(
                backend_pid,
                self.address.role,
                self.cell.probes[connection.place],
                lambda: self.cell.leader.is_elsewhere(connection.place),
            )
        finally:
            # 0.0: the wait says nothing about how long a slot is usually held. It also served as the penalty.
            self._close_with_slot(connection)
            self.admission.release(self.queue, 0.0)
            self.cell.planning.look_again()

    def _close_with_slot(self, connection: Connection) -> None:
        """Closes a connection whose slot is about to be released, and takes it back: it belongs to the connection."""
        self._close(connection)
        self.cell.planner.give_back(self.queue, 1)

    def _close(self, connection: Connection) -> None:
        connection.close()
        self.cell.planner.closed(self.queue)

    async def _look_up(self, sql: str, parameter: bytes, deadline: Deadline) -> list[list[str]]:
        try:
            async with asyncio.timeout(deadline.left_s() + _LOOK_UP_GRACE_S):
                return await values_and_close(await self.open_apart(), sql, parameter)
        except TimeoutError:
            raise engine_unavailable("a lookup of types had no answer before the deadline") from None


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
