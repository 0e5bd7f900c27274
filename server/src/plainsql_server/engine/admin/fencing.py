"""Keeping others away from a customer's database on its cell, for a moment.

Owns the lock that whoever makes, drops or moves a database takes, and the closing of one to everybody. Refuses to
decide when that is right.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import EngineError
from plainsql_server.engine.admin.provisioning import MAINTENANCE_DATABASE, EngineNames, admin_connection, lock_database

# A backend heeds its end at once unless it is deep in a system call. Then it is asked again, but not for ever: whoever
# closes a database has its customer wait.
_END_TIMEOUT_MS = 1_000
_END_ALL_S = 3.0
# A request is on its way to the cell for about a millisecond after it was let through.
_LOOK_EVERY_S = 0.01
_QUIET_LOOKS = 2


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
            await end_connections(cell, database)
            yield
        finally:
            await allow_connections(cell, database, True)


async def open_again(cell: AsyncConnection, database: str) -> None:
    """Opens a database, if there still is one. The caller has its lock, so that nobody drops it meanwhile."""
    found = await cell.execute("SELECT FROM pg_database WHERE datname = %s", (database,))
    if found.rowcount:
        await allow_connections(cell, database, True)


async def allow_connections(cell: AsyncConnection, database: str, allowed: bool) -> None:
    """Opens a database, or closes it to everybody but those who are in it already."""
    statement = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
    await cell.execute(statement.format(sql.Identifier(database), sql.Literal(allowed)))


async def end_connections(cell: AsyncConnection, database: str, spared: Collection[int] = ()) -> None:
    """Ends every connection to a closed database but those spared, by their processes' ids; then there is no other.

    One that was being opened when the database was closed is not listed yet, but holds a lock on it until it is.
    Raises EngineError if one does not heed its end.
    """
    opening = """
        SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.objid AND d.datname = %s
        WHERE l.locktype = 'object' AND l.classid = 'pg_database'::regclass AND l.pid <> pg_backend_pid()
    """
    ending = """
        SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
        WHERE datname = %s AND backend_type = 'client backend' AND pid <> ALL(%s)
    """
    are_some, end_s = True, time.monotonic() + _END_ALL_S
    while are_some:
        if time.monotonic() > end_s:
            raise EngineError("database_busy", "A connection to the database does not end.", retryable=True)
        are_some = (await cell.execute(opening, (database,))).rowcount > 0
        are_some |= (await cell.execute(ending, (_END_TIMEOUT_MS, database, list(spared)))).rowcount > 0


async def wait_for_quiet(cell: AsyncConnection, database: str, spared: Collection[int], for_s: float) -> None:
    """Waits until nothing runs in a database, twice in a row, or until the time is over."""
    running = """
        SELECT FROM pg_stat_activity
        WHERE datname = %s AND backend_type = 'client backend' AND state <> 'idle' AND pid <> ALL(%s)
        UNION ALL SELECT FROM pg_prepared_xacts WHERE database = %s
    """
    end_s = time.monotonic() + for_s
    quiet = 0
    while quiet < _QUIET_LOOKS and time.monotonic() < end_s:
        found = await cell.execute(running, (database, list(spared), database))
        quiet = 0 if found.rowcount else quiet + 1
        await asyncio.sleep(_LOOK_EVERY_S)


async def has_prepared(cell: AsyncConnection, database: str) -> bool:
    """Whether a transaction is prepared in the database, which ending connections does not end."""
    found = await cell.execute("SELECT FROM pg_prepared_xacts WHERE database = %s", (database,))
    return found.rowcount > 0


async def has_all(cell: AsyncConnection, database: str, pids: Collection[int]) -> bool:
    """Whether all of these processes serve connections to the database, on the server that is asked."""
    query = "SELECT FROM pg_stat_activity WHERE datname = %s AND pid = ANY(%s)"
    return (await cell.execute(query, (database, list(pids)))).rowcount == len(set(pids))


async def take_lock(cell: AsyncConnection, names: EngineNames) -> None:
    """Becomes the only one that works on a database, by ending whoever is: the caller knows that it may not go on."""
    ending = """
        SELECT pg_terminate_backend(l.pid, %s) FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND l.classid::bigint << 32 | l.objid::bigint = hashtextextended(%s, 0)
    """
    await cell.execute(ending, (_END_TIMEOUT_MS, names.database))
    await lock_database(cell, names)
