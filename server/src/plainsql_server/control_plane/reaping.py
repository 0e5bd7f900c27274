"""The reaper: what is past its ceiling on a cell, and nobody's, is ended.

Owns the ceilings. A data plane ends its own statements at their deadline; this is for what it cannot: statements of a
process that was killed, connections of a machine that is gone, transactions that were prepared and forgotten, and
tenants who take more of what a cell's tenants share than a cell can bear. Every control process runs it, and each cell
is looked at by one of them. Refuses to decide about a database: nothing that is stored is touched.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.observation import Failure, Observe, Reaped, told_to_operators
from plainsql_server.directory import cells, roles, spanning
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin.reaping import CellWatch, Locker, OldTransaction
from plainsql_server.engine.execution.spanning import GID_PREFIX
from plainsql_server.limits.tiers import TIERS, Limits

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """How much is too much."""

    tiers: Mapping[str, Limits] = field(default_factory=lambda: TIERS)
    # What the service's own ending takes, at most, and a clock that is behind.
    grace_s: float = 5.0
    # Pools close theirs after a minute; older ones belong to a process that is gone.
    idle_s: float = 300.0
    # Of one organization, over all of its connections. A cell has places for about 140,000 locks. Dropping a schema
    # of ten thousand tables takes some forty thousand.
    locks: int = 50_000
    # Connections with fewer are not counted.
    few_locks: int = 500
    # Gathering statistics computes for some seconds, if nothing in it waits on purpose.
    maintenance_s: float = 60.0
    # Whoever prepares a transaction finishes it at once.
    prepared_s: float = 60.0
    # Of the service's own, those without a record in the directory: of a process that was killed, or was too slow.
    stray_s: float = 5.0

    def transaction_s(self, limits: Limits, *, has_written: bool) -> float:
        """How old a transaction may be. One that has written is no stream."""
        longest_ms = max(limits.statement_timeout_ms, limits.transaction_timeout_ms)
        return (longest_ms if has_written else max(longest_ms, limits.stream_life_ms)) / 1000 + self.grace_s

    def shortest_transaction_s(self) -> float:
        return min(self.transaction_s(limits, has_written=True) for limits in self.tiers.values())

    def is_past(self, transaction: OldTransaction, tier: str | None) -> bool:
        """Whether a transaction is too old. A role without a tier may be one of a database that is being dropped."""
        limits = [self.tiers[tier]] if tier is not None else self.tiers.values()
        return transaction.age_s > max(self.transaction_s(each, has_written=transaction.has_written) for each in limits)


class Reaper:
    """Looks at every cell again and again."""

    def __init__(self, directory: Directory, observe: Observe, ceilings: Ceilings | None = None) -> None:
        self._directory = directory
        self._ceilings = ceilings or Ceilings()
        self._observe = observe
        self._watches: dict[str, tuple[CellRecord, CellWatch]] = {}

    async def run(self) -> None:
        """Works for ever; cancelling it closes its connections."""
        try:
            while True:
                try:
                    await self.look()
                except Exception as error:
                    # The directory is away, mostly. A loop that died would not come back.
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
        """Looks at every cell once. Raises ServiceError if the directory is away."""
        known = await cells.list_(self._directory)
        await asyncio.gather(*(self._look_at(cell) for cell in known if cell.state is not CellState.DOWN))

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
        """Ends prepared transactions of nobody. The service's own have a record that says how they end."""
        old = await watch.prepared(self._ceilings.prepared_s)
        nobodys = [each for each in old if not each[0].startswith(GID_PREFIX)]
        services = [each for each in await watch.prepared(self._ceilings.stray_s) if each[0].startswith(GID_PREFIX)]
        # Asked after they were seen: a record is there before anything is prepared, and until nothing is any more.
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
        self._observe(Failure(now(), "failure", "reaping", told_to_operators(error)))


def _organization(owners: Mapping[str, roles.RoleOwner], locker: Locker) -> str:
    # A role that the directory does not know any more stands for itself.
    owner = owners.get(locker.role)
    return locker.role if owner is None else owner.organization
