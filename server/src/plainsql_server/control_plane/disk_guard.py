"""The disk guard: suspends databases that exceed the operator's size limit.

PostgreSQL has no quotas, and a full disk stops every tenant of a cell. So the one large database is suspended first.
Its data is kept; its organization can delete it, and the operator can resume it. The guard checks only once per minute,
because reading the sizes touches every file of a cell.
"""

import asyncio

from plainsql_server.control_plane import databases
from plainsql_server.core.actor import SERVICE
from plainsql_server.core.clock import now
from plainsql_server.core.errors import ConflictError, ServiceError
from plainsql_server.core.observation import FailureObserved, Observe, Reaped, describe_for_operators
from plainsql_server.directory import cells
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import OUT_OF_SERVICE, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin import provisioning

_LOOK_EVERY_S = 60.0


class DiskGuard:
    """Checks the sizes of all databases, once per minute."""

    def __init__(self, directory: Directory, observe: Observe, max_bytes: int) -> None:
        self._directory = directory
        self._observe = observe
        self._max_bytes = max_bytes

    async def run(self) -> None:
        """Runs forever. Returns at once if there is no size limit."""
        while self._max_bytes:
            try:
                await self.look()
            except Exception as error:
                # Usually the directory is unavailable. The loop must survive, because nothing restarts it.
                self._report(error)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Checks every cell once. Raises ServiceError if the directory is unavailable."""
        for cell in await cells.list_(self._directory):
            if cell.state in OUT_OF_SERVICE:
                continue
            try:
                suspended = [await self._suspend(each) for each in await self._past_ceiling(cell)]
            except ServiceError as error:
                self._report(error)
                continue
            if any(suspended):
                self._observe(Reaped(now(), "reaped", cell.name, "size", sum(suspended)))

    async def _past_ceiling(self, cell: CellRecord) -> list[DatabaseRecord]:
        ready = {each.engine_name: each for each in await stored.ready_on(self._directory, cell.id)}
        sizes = await provisioning.sizes_bytes(cell.conninfo, cell.admin_role, list(ready))
        return [ready[name] for name, size_bytes in sizes.items() if (size_bytes or 0) > self._max_bytes]

    async def _suspend(self, database: DatabaseRecord) -> bool:
        try:
            await databases.suspend(self._directory, database, SERVICE)
        except ConflictError:
            # Another control process suspended it first, or it is being deleted.
            return False
        return True

    def _report(self, error: Exception) -> None:
        self._observe(FailureObserved(now(), "failure", "disk_guard", describe_for_operators(error)))
