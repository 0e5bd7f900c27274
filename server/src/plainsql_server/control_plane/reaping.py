"""The reaper: ends statements, connections and transactions on cells that exceed their limits.

A data plane ends its own statements at their deadline. The reaper handles what no data plane cleans up: statements of a
killed process, connections of a machine that is gone, prepared transactions that were abandoned, and tenants that use
more of a cell's shared resources than the cell can provide. Every control process runs a reaper; each cell is checked
by one of them. The reaper never touches stored data.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.observation import FailureObserved, Observe, Reaped, describe_for_operators
from plainsql_server.directory import cells, roles, spanning
from plainsql_server.directory.cells import OUT_OF_SERVICE, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin.reaping import CellWatch, Locker, OldTransaction
from plainsql_server.engine.execution.spanning import GID_PREFIX
from plainsql_server.limits.tiers import TIERS, Limits

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits that the reaper enforces."""

    tiers: Mapping[str, Limits] = field(default_factory=lambda: TIERS)
    # Covers the time that the service itself needs to end a statement, and clock differences.
    grace_s: float = 5.0
    # Pools close idle connections after a minute. Older ones belong to a process that is gone.
    idle_s: float = 300.0
    # Locks per organization, over all of its connections. A cell has room for about 140,000 locks. Dropping a schema
    # with 10,000 tables takes about 40,000.
    locks: int = 50_000
    # Connections with fewer locks are not counted.
    few_locks: int = 500
    # Gathering statistics takes some seconds, unless something in it waits on purpose.
    maintenance_s: float = 60.0
    # A client that prepares a transaction normally finishes it at once.
    prepared_s: float = 60.0
    # For the service's own prepared transactions without a record in the directory: their process was killed or slow.
    stray_s: float = 5.0

    def transaction_s(self, limits: Limits, *, has_written: bool) -> float:
        """The maximum age of a transaction. The stream limit does not apply to one that has written."""
        longest_ms = max(limits.statement_timeout_ms, limits.transaction_timeout_ms)
        return (longest_ms if has_written else max(longest_ms, limits.stream_life_ms)) / 1000 + self.grace_s

    def shortest_transaction_s(self) -> float:
        return min(self.transaction_s(limits, has_written=True) for limits in self.tiers.values())

    def is_past(self, transaction: OldTransaction, tier: str | None) -> bool:
        """Whether a transaction is too old. If its tier is unknown (a dropped database), the longest limit applies."""
        limits = [self.tiers[tier]] if tier is not None else self.tiers.values()
        return transaction.age_s > max(self.transaction_s(each, has_written=transaction.has_written) for each in limits)


class Reaper:
    """Checks every cell, once per second."""

    def __init__(self, directory: Directory, observe: Observe, ceilings: Ceilings | None = None) -> None:
        self._directory = directory
        self._ceilings = ceilings or Ceilings()
        self._observe = observe
        self._watches: dict[str, tuple[CellRecord, CellWatch]] = {}

    async def run(self) -> None:
        """Runs forever. Cancelling it closes its connections."""
        try:
            while True:
                try:
                    await self.look()
                except Exception as error:
                    # Usually the directory is unavailable. The loop must survive, because nothing restarts it.
                    self._report(error)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        for _, watch in self._watches.values():
            await watch.close()
        self._watches.clear()

    async def look(self) -> None:
        """Checks every cell once. Raises ServiceError if the directory is unavailable."""
        known = await cells.list_(self._directory)
        await asyncio.gather(*(self._look_at(cell) for cell in known if cell.state not in OUT_OF_SERVICE))

    async def _look_at(self, cell: CellRecord) -> None:
        try:
            watch = await self._watch(cell)
            if watch is not None:
                for what, count in (await self._reap(watch)).items():
                    if count:
                        self._observe(Reaped(now(), "reaped", cell.name, what, count))
        except ServiceError as error:
            await self._forget(cell)
            self._report(error)

    async def _reap(self, watch: CellWatch) -> dict[str, int]:
        return {
            "transaction": await self._end_old_transactions(watch),
            "locks": await self._end_lockers(watch),
            "maintenance": await watch.end_maintenance(self._ceilings.maintenance_s),
            "idle": await watch.end_idle(self._ceilings.idle_s),
            "prepared": await self._end_prepared(watch),
        }

    async def _end_prepared(self, watch: CellWatch) -> int:
        """Ends abandoned prepared transactions. For the service's own, a record says whether to commit them."""
        old = await watch.prepared(self._ceilings.prepared_s)
        nobodys = [each for each in old if not each[0].startswith(GID_PREFIX)]
        services = [each for each in await watch.prepared(self._ceilings.stray_s) if each[0].startswith(GID_PREFIX)]
        # Read the records after the prepared transactions: a record exists before the first one is prepared and until
        # the last one is finished.
        strays = await spanning.strays(self._directory, services) if services else {}
        ended = await watch.roll_back_prepared(nobodys)
        for gid, database in services:
            if gid in strays:
                ended += await watch.end_prepared(gid, database, commit=strays[gid])
        return ended

    async def _end_old_transactions(self, watch: CellWatch) -> int:
        old = await watch.old_transactions(self._ceilings.shortest_transaction_s())
        if not old:
            return 0
        owners = await roles.owners(self._directory, [each.role for each in old])
        tiers = {role: owner.tier for role, owner in owners.items()}
        ended = [await watch.end(each) for each in old if self._ceilings.is_past(each, tiers.get(each.role))]
        return sum(ended)

    async def _end_lockers(self, watch: CellWatch) -> int:
        lockers = await watch.lockers(self._ceilings.few_locks)
        if sum(each.locks for each in lockers) <= self._ceilings.locks:
            return 0
        owners = await roles.owners(self._directory, [each.role for each in lockers])
        held: Counter[str] = Counter()
        for each in lockers:
            held[_organization(owners, each)] += each.locks
        past = [each for each in lockers if held[_organization(owners, each)] > self._ceilings.locks]
        return sum([await watch.end(each) for each in past])

    async def _watch(self, cell: CellRecord) -> CellWatch | None:
        kept = self._watches.get(cell.id)
        if kept is not None and kept[0] == cell:
            return kept[1]
        await self._forget(cell)
        watch = await CellWatch.open(cell.conninfo, cell.admin_role)
        if watch is not None:
            self._watches[cell.id] = cell, watch
        return watch

    async def _forget(self, cell: CellRecord) -> None:
        kept = self._watches.pop(cell.id, None)
        if kept is not None:
            await kept[1].close()

    def _report(self, error: Exception) -> None:
        self._observe(FailureObserved(now(), "failure", "reaping", describe_for_operators(error)))


def _organization(owners: Mapping[str, roles.RoleOwner], locker: Locker) -> str:
    # A role that the directory no longer knows counts as its own organization.
    owner = owners.get(locker.role)
    return locker.role if owner is None else owner.organization
