"""The pools of a process: one for each address, grouped by cell, whose connections and slots they share.

pools = Pools(limits, connect_timeout_ms, observe)
pool = pools.for_address(address, organization_id)
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from plainsql_server.core.observation import CellLoad, Observe
from plainsql_server.core.tasks import end
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.admission_queue import AdmissionQueue
from plainsql_server.engine.pool.health import probes
from plainsql_server.engine.pool.leader import Leader
from plainsql_server.engine.pool.pool import Pool
from plainsql_server.engine.pool.reservation import Reservations

# An idle backend costs the cell about 4 MB, opening one about 3 ms. One minute keeps the connections that are in use.
_IDLE_LIFE_S = 60.0
_SWEEP_EVERY_S = 5.0

_T = TypeVar("_T")


class CellPools:
    """The pools of one cell, which share its connection limit and its admission queue."""

    def __init__(self, address: Address, limits: "PoolLimits", connect_timeout_ms: int, observe: Observe) -> None:
        self._name = address.cell_name
        self.probes = probes(address.cell_conninfo)
        self.leader = Leader(self.probes)
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
        self.idle: OrderedDict[Connection, tuple[Pool, float]] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Tasks that wait for backends which ignore termination. `close` cancels them.
        self._waits: set[asyncio.Task[None]] = set()

    def pool(self, address: Address, organization_id: str) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(address, organization_id, self)
        return pool

    def close_one_idle(self) -> None:
        """Closes the least recently used idle connection if the cell has reached its connection limit."""
        if self.open_count >= self._max_open and self.idle:
            connection, (pool, _) = self.idle.popitem(last=False)
            pool.close_idle(connection)

    def close_idle(self, idle_life_s: float) -> None:
        """Closes connections that have been idle for `idle_life_s`, and drops pools that are no longer in use."""
        too_old = time.monotonic() - idle_life_s
        while self.idle:
            connection, (pool, since) = next(iter(self.idle.items()))
            if since > too_old:
                break
            del self.idle[connection]
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
        await end(*self._waits)
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
