"""Temporary schemas in a customer's database.

    async with schemas.slot(principal), schemas.schema(principal, database, setup) as name: …

A schema is always removed: by the process that created it, or, if that died, by the next one that creates a schema in
the database. Each process runs one such task at a time per organization: some need two connections at once, and two of
them could wait for each other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from plainsql_server.core.errors import RETRY_AFTER_MS, LimitError, ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.service_connections import ServiceConnections
from plainsql_server.engine.connection.batch import SAFE_PATH, Own
from plainsql_server.engine.execution import temporary_schemas
from plainsql_server.limits.tiers import TIERS

_BEGIN = b"begin isolation level read committed read write"

# The statements that set up a schema, given its name.
Setup = Callable[[str], Sequence[bytes | Own]]


class TemporarySchemas:
    """Creates temporary schemas, for one task at a time per organization."""

    def __init__(self, connections: ServiceConnections) -> None:
        self._connections = connections
        # Kept as long as a request holds or awaits it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, principal: Principal) -> AsyncIterator[None]:
        """Admits one task at a time. Raises LimitError if the others do not finish in time."""
        lock = self._locks.setdefault(principal.organization_id, asyncio.Lock())
        try:
            async with asyncio.timeout(TIERS[principal.tier].statement_timeout_ms / 1000):
                await lock.acquire()
        except TimeoutError:
            raise LimitError(
                "overloaded", "Other probes, tests and benchmarks of your organization are still running.",
                retryable=True, retry_after_ms=RETRY_AFTER_MS,
            ) from None  # fmt: skip
        try:
            yield
        finally:
            lock.release()

    @asynccontextmanager
    async def schema(self, principal: Principal, database: str | None, furnish: Setup) -> AsyncIterator[str]:
        """Creates a schema, yields its name, and removes it. Hold the slot meanwhile. Raises ServiceError."""
        name = temporary_schemas.new_schema_name()
        await self._make(principal, database, name, furnish(name))
        try:
            yield name
        except BaseException as error:
            try:
                await self.remove(principal, database, name)
            except ServiceError as failed:
                # Report the first error. The next task in this database removes the schema.
                error.add_note(f"and {name} could not be removed: {failed.code}")
            raise
        await self.remove(principal, database, name)

    async def remove(self, principal: Principal, database: str | None, name: str) -> None:
        """Removes a schema, if it exists."""
        async with self._connections.open(principal, database) as service:
            await service.run(temporary_schemas.drop(name))

    async def _make(self, principal: Principal, database: str | None, name: str, setup: Sequence[bytes | Own]) -> None:
        async with self._connections.open(principal, database) as service:
            (abandoned,) = await service.run(temporary_schemas.find_abandoned())
            for (found,) in abandoned.rows:
                await service.run(temporary_schemas.drop((found or b"").decode()))
            await service.run(_BEGIN, SAFE_PATH, temporary_schemas.create(name), *setup, b"commit")
