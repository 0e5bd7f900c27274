"""Keeping others away from a customer's database on its cell, for a moment.

Owns the lock that whoever makes or drops a database takes, and the closing of one to everybody. Refuses to decide
when that is right.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg import AsyncConnection, sql

from plainsql_server.engine.provisioning import MAINTENANCE_DATABASE, EngineNames, admin_connection, lock_database

# A backend heeds its end at once unless it is deep in a system call; then it is asked again.
_END_TIMEOUT_MS = 5_000


@asynccontextmanager
async def held(conninfo: str, admin_role: str, names: EngineNames) -> AsyncIterator[bool]:
    """Nobody else makes or drops the database during the block; whether it is there."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await lock_database(cell, names)
        found = await cell.execute("SELECT FROM pg_database WHERE datname = %s", (names.database,))
        yield found.rowcount == 1


@asynccontextmanager
async def closed(conninfo: str, admin_role: str, database: str) -> AsyncIterator[None]:
    """Nobody is or gets connected to the database during the block; it is open afterwards, whatever happened."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await allow_connections(cell, database, False)
        try:
            await _end_connections(cell, database)
            yield
        finally:
            await allow_connections(cell, database, True)


async def allow_connections(cell: AsyncConnection, database: str, allowed: bool) -> None:
    """Opens a database, or closes it to everybody but those who are in it already."""
    statement = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
    await cell.execute(statement.format(sql.Identifier(database), sql.Literal(allowed)))


async def _end_connections(cell: AsyncConnection, database: str) -> None:
    ending = """
        SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
        WHERE datname = %s AND backend_type = 'client backend'
    """
    while (await cell.execute(ending, (_END_TIMEOUT_MS, database))).rowcount:
        continue
