"""Scratch schemas in a customer's database, for the length of a piece of work.

Owns that they are removed whatever happens: by who made them, or, where that process died, by the next who makes one.
An organization's scratch work is done one piece at a time in each process: some of it needs two connections at once,
and two such could wait for each other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from plainsql_server.core.errors import LimitError, ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.service_statements import Visits
from plainsql_server.engine.connection.batch import SAFE_PATH, Own
from plainsql_server.engine.execution import temporary_schemas
from plainsql_server.limits.tiers import TIERS

_BEGIN = b"begin isolation level read committed read write"
_RETRY_AFTER_MS = 1_000

# What is made in a scratch schema, by its name.
Furnish = Callable[[str], Sequence[bytes | Own]]


class Scratches:
    """Makes scratch schemas, and gives turns for work that needs one."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        # As long as somebody has or wants it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, principal: Principal) -> AsyncIterator[None]:
        """The organization's turn for scratch work. Raises LimitError if it does not come in time."""
        lock = self._turns.setdefault(principal.organization_id, asyncio.Lock())
        try:
            async with asyncio.timeout(TIERS[principal.tier].statement_timeout_ms / 1000):
                await lock.acquire()
        except TimeoutError:
            raise LimitError(
                "overloaded", "Other probes, tests and benchmarks of your organization are still running.",
                retryable=True, retry_after_ms=_RETRY_AFTER_MS,
            ) from None  # fmt: skip
        try:
            yield
        finally:
            lock.release()

    @asynccontextmanager
    async def schema(self, principal: Principal, database: str | None, furnish: Furnish) -> AsyncIterator[str]:
        """A scratch schema's name, for who has the turn. Raises ServiceError; the schema is gone afterwards."""
        name = temporary_schemas.new_scratch_name()
        await self._make(principal, database, name, furnish(name))
        try:
            yield name
        except BaseException as error:
            try:
                await self.remove(principal, database, name)
            except ServiceError as failed:
                # What went wrong first is told; the schema is found by the next who makes one.
                error.add_note(f"and {name} could not be removed: {failed.code}")
            raise
        await self.remove(principal, database, name)

    async def remove(self, principal: Principal, database: str | None, name: str) -> None:
        """Removes a scratch schema, if it is there."""
        async with self._visits.visit(principal, database) as visit:
            await visit.run(temporary_schemas.drop(name))

    async def _make(
        self, principal: Principal, database: str | None, name: str, furniture: Sequence[bytes | Own]
    ) -> None:
        async with self._visits.visit(principal, database) as visit:
            (abandoned,) = await visit.run(temporary_schemas.find_abandoned())
            for (found,) in abandoned.rows:
                await visit.run(temporary_schemas.drop((found or b"").decode()))
            await visit.run(_BEGIN, SAFE_PATH, temporary_schemas.create(name), *furniture, b"commit")
