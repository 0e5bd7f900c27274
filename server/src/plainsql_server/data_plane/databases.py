"""Which database a request means, and as which role it goes there.

Owns the choice between a key's own database, the request's and the organization's default. Refuses what
is another organization's exactly as what does not exist.
"""

import asyncio

from plainsql_server.core.errors import AccessError, EngineError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory import databases
from plainsql_server.directory.cache import Cache
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.engine.address import Address
from plainsql_server.engine.leftovers import may_store_code


class Databases:
    """The databases of all organizations, by name, remembered as long as principals are."""

    def __init__(self, directory: Directory, trusted_ms: int) -> None:
        self._directory = directory
        self._trusted_ms = trusted_ms
        self._by_name: Cache[tuple[str, str | None], DatabaseRecord | None] = Cache(self._look_up, trusted_ms)

    async def find(self, principal: Principal, name: str | None) -> DatabaseRecord:
        """The database that the request means. Raises AccessError or, while it is not ready, EngineError."""
        if principal.database is not None:
            if name is not None and name != principal.database:
                raise AccessError("forbidden", f"This key is bound to the database {principal.database!r}.")
            name = principal.database
        record = await self._by_name.get((principal.organization_id, name))
        if record is None:
            raise AccessError("database_not_found", _not_found_message(name))
        if record.state is not DatabaseState.READY:
            raise _not_ready(record)
        return record

    async def stays_plain(self, record: DatabaseRecord, sql: str) -> bool:
        """Whether a plain database is still plain when this statement runs.

        Returns False after every process has had the time to learn it: the record is changed first, and only
        when nobody can remember the old one any more may the statement run. That happens once in a
        database's life, with its first function, view or trigger.
        """
        if not may_store_code(sql):
            return True
        await databases.set_not_plain(self._directory, record.id)
        await asyncio.sleep(self._trusted_ms / 1000)
        return False

    async def _look_up(self, key: tuple[str, str | None]) -> DatabaseRecord | None:
        organization_id, name = key
        return await databases.find(self._directory, organization_id, name)


def address_of(record: DatabaseRecord, principal: Principal) -> Address:
    """Where the principal's statements go: as the owner if it may write, else as the reader."""
    if principal.may(Scope.WRITE):
        return Address(record.cell_conninfo, record.engine_name, record.owner_role)
    return Address(record.cell_conninfo, record.engine_name, record.reader_role, read_only=True)


def _not_found_message(name: str | None) -> str:
    return "Your organization has no database yet." if name is None else f"There is no database named {name!r}."


def _not_ready(record: DatabaseRecord) -> EngineError:
    return EngineError(
        "database_not_ready",
        f"The database {record.name!r} is {record.state}, not ready.",
        retryable=record.state is DatabaseState.CREATING,
        retry_after_ms=1_000,
    )
