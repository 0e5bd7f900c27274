"""The pools of a process: one for each address, grouped by cell, whose connections and slots they share.

    pools = Pools(limits, connect_timeout_ms, observe)
    pool = pools.for_address(address, organization_id)

A cell has two limits: how many requests run at once, and how many connections are open. Far more connections are open
than run anything: opening one costs as much as a hundred lookups, keeping it costs some memory of the cell. The planner
(`planner.py`) says which database has how many; the pools of a cell do it.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from plainsql_server.core.clock import now
from plainsql_server.core.errors import EngineError, described
from plainsql_server.core.observation import CellLoad, FailureObserved, Observe
from plainsql_server.core.share import Share
from plainsql_server.core.tasks import end
from plainsql_server.engine.connection.queries import values_and_close
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.admission_queue import AdmissionQueue
from plainsql_server.engine.pool.health import probes
from plainsql_server.engine.pool.leader import Leader
from plainsql_server.engine.pool.planner import Demand, Planner
from plainsql_server.engine.pool.planning import Planning
from plainsql_server.engine.pool.pool import Pool
from plainsql_server.engine.pool.reservation import Reservations
from plainsql_server.engine.pool.share import FIRST_CONNECTIONS, connections_of, parts_of

# An idle backend costs the cell about 2 MB, opening one 5 to 11 ms of its processors and ours.
_IDLE_LIFE_S = 60.0
_SWEEP_EVERY_S = 5.0
# How often a cell is asked how many connections it allows, and how long that may take.
_ASK_EVERY_S = 60.0
_ASK_AGAIN_S = 5.0
_ASK_TIMEOUT_S = 2.0
_ALLOWED = "select pg_catalog.current_setting($1::text)"

_T = TypeVar("_T")


class CellPools:
    """The pools of one cell, which share its connection limit and its admission queue."""

    def __init__(
        self, address: Address, limits: "PoolLimits", share: Share, connect_timeout_ms: int, observe: Observe
    ) -> None:
        self._name = address.cell_name
        self.probes = probes(address.cell_conninfo)
        self.leader = Leader(self.probes)
        connections = limits.cell_connections or FIRST_CONNECTIONS
        self.planner = Planner(connections)
        self._max_running = limits.cell_running
        running = min(connections, limits.cell_running)
        self.admission = AdmissionQueue(running, limits.cell_waiting, self.planner)
        self.planning = Planning(self.planner, self.admission, self._close_one)
        self.reservations = Reservations(running)
        # Streams may use half of everything: of the cell's slots, of an organization's and of a pool's. So clients that
        # do not read leave some for other requests.
        self.stream_admission = AdmissionQueue(max(1, running // 2), limits.cell_waiting)
        self.pool_limit = limits.pool_connections
        self._share = share
        # Read by each request, so without looking at the clock.
        self.held = share.held
        self.connect_timeout_ms = connect_timeout_ms
        self.observe = observe
        # The cell's max_connections, if this process divides them with others.
        self._allowed: int | None = None
        self._pools: dict[Address, Pool] = {}
        self._by_demand: dict[Demand, Pool] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        # Tasks that wait for backends which ignore termination. `close` cancels them.
        self._waits: set[asyncio.Task[None]] = set()

    def pool(self, address: Address, organization_id: str) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(address, organization_id, self)
            self._by_demand[pool.queue] = pool
            # Until it is used, or it would be dropped if its first request waits for something else.
            pool.queue.touch(time.monotonic())
        return pool

    def resize(self, connections: int) -> None:
        """Sets how many connections this process may have to the cell."""
        self.planner.capacity = connections
        running = min(connections, self._max_running)
        self.admission.resize(running)
        self.stream_admission.resize(max(1, running // 2))
        self.reservations.resize(running)
        self.planning.look_again()
        self.admission.serve()
        self.stream_admission.serve()

    async def watch_limit(self) -> None:
        """Asks now and then how many connections the cell allows, and takes its share of them, until cancelled."""
        while True:
            try:
                connection = await self.leader.connect(self.probes, _ASK_TIMEOUT_S, _ASK_TIMEOUT_S)
                async with asyncio.timeout(_ASK_TIMEOUT_S):
                    ((allowed,),) = await values_and_close(connection, _ALLOWED, b"max_connections")
                self._allowed = int(allowed)
                self.take_share()
                pause_s = _ASK_EVERY_S
            except (EngineError, TimeoutError):
                # Requests to this cell fail, too, and are reported. Until it answers, the last limit stays.
                pause_s = _ASK_AGAIN_S
            except Exception as error:
                # Any error: nothing restarts this task.
                context = f"asking a cell for its limit failed: {described(error)}"
                self.observe(FailureObserved(now(), "failure", "engine.pool", context))
                pause_s = _ASK_AGAIN_S
            await asyncio.sleep(pause_s)

    def take_share(self) -> None:
        """Changes the limits to this process' share: of organizations' statements, and of the cell's connections."""
        if self.held != self._share.held:
            self.held = self._share.held
            for pool in self._pools.values():
                pool.take_share()
            self.admission.serve()
        if self._allowed is not None:
            self.resize(connections_of(self._allowed, self._share))

    def in_use(self) -> int:
        """The parts of WHOLE that the connections are, if they are divided: open ones, and those that may be opened."""
        return 0 if self._allowed is None else parts_of(self._allowed, self.planner.in_use, self._share.processes)

    def _close_one(self, demand: Demand) -> None:
        self._by_demand[demand].close_longest_idle()

    def close_idle(self, idle_life_s: float) -> None:
        """Closes connections that have been idle for `idle_life_s`, and drops pools that are no longer in use."""
        now_s = time.monotonic()
        for pool in self._pools.values():
            pool.close_idle(now_s - idle_life_s)
        self._drop_pools(now_s)

    def _drop_pools(self, now_s: float) -> None:
        for address, pool in list(self._pools.items()):
            if not pool.is_in_use(now_s):
                del self._pools[address], self._by_demand[pool.queue]
                self.planner.leave(pool.queue)
                # The fast lane's callers may still refer to the pool.
                pool.catalog.forget()
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
        return CellLoad(self._name, self.planner.open_count, running, self.admission.waiting, len(self._pools), streams)

    async def close(self) -> None:
        """Waits for the background tasks, then closes all idle connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await end(*self._waits)
        await self.leader.close()
        self.planning.close()
        self.close_idle(idle_life_s=-1)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of one process: connections per pool and per cell, and waiting and running requests per cell.

    Without `cell_connections`, a process has its share of what the cell allows.
    """

    pool_connections: int
    cell_connections: int | None
    cell_waiting: int
    cell_running: int = 64


class Pools:
    """All pools of this process. Each is created on first use."""

    def __init__(
        self, limits: PoolLimits, connect_timeout_ms: int, observe: Observe, share: Share | None = None
    ) -> None:
        """Of the limits that processes divide, this one has its `share`: all, if it is not given."""
        self._limits = limits
        self._connect_timeout_ms = connect_timeout_ms
        self._observe = observe
        self._cells: dict[str, CellPools] = {}
        self._share = share or Share.fixed(Fraction(1))

    def for_address(self, address: Address, organization_id: str) -> Pool:
        """The pool for an address. An address belongs to one organization."""
        cell = self._cells.get(address.cell_conninfo)
        if cell is None:
            cell = CellPools(address, self._limits, self._share, self._connect_timeout_ms, self._observe)
            self._cells[address.cell_conninfo] = cell
            if self._limits.cell_connections is None:
                cell.outlive(cell.watch_limit())
        return cell.pool(address, organization_id)

    def take_share(self) -> None:
        """Keeps to the share that this process has now. Call it when that may have changed."""
        for cell in self._cells.values():
            cell.take_share()

    def in_use(self) -> int:
        """The parts of WHOLE that the connections to some cell are. They may be more than the share for a while."""
        return max((cell.in_use() for cell in self._cells.values()), default=0)

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
