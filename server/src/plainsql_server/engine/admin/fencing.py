"""Fences a tenant's database on its cell: locks it against other administrative work, and closes it to connections.

`held` takes the advisory lock that creating, dropping and moving a database take. `closed` disallows connections and
terminates the existing ones.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import EngineError
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.provisioning import EngineNames, admin_connection, lock_database

# A backend reacts to termination at once, unless it is blocked in a system call. Then it is signaled again, but not
# forever: the tenant's requests wait while the database is closed.
_END_TIMEOUT_MS = 1_000
_END_ALL_S = 3.0
# A request takes about a millisecond to reach the cell after it was admitted.
_LOOK_EVERY_S = 0.01
# Longer than a connection attempt, which has a limit of its own: a server may stop responding right after it.
_ANSWER_S = 10.0
_QUIET_LOOKS = 2


@asynccontextmanager
async def held(conninfo: str, admin_role: str, names: EngineNames) -> AsyncIterator[bool]:
    """Holds the database's lock during the block, so no one else creates or drops it. Yields whether it exists."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await lock_database(cell, names)
        found = await cell.execute("SELECT FROM pg_database WHERE datname = %s", (names.database,))
        yield found.rowcount == 1


@asynccontextmanager
async def closed(conninfo: str, admin_role: str, database: str) -> AsyncIterator[None]:
    """Closes the database to all connections during the block. Opens it again afterwards, whatever happens."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await allow_connections(cell, database, False)
        try:
            await end_connections(cell, database)
            yield
        finally:
            await allow_connections(cell, database, True)


async def end_all(conninfo: str, admin_role: str, database: str) -> None:
    """Ends all connections to a database, if it exists, and lets new ones in again."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        found = await cell.execute("SELECT FROM pg_database WHERE datname = %s", (database,))
    if found.rowcount:
        async with closed(conninfo, admin_role, database):
            return


async def answers(conninfo: str, admin_role: str) -> bool:
    """Whether a cell responds to its admin role."""
    try:
        async with asyncio.timeout(_ANSWER_S), admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE):
            return True
    except (EngineError, TimeoutError):
        return False


async def open_again(cell: AsyncConnection, database: str) -> None:
    """Allows connections to a database, if it still exists. The caller must hold its lock, so no one can drop it."""
    found = await cell.execute("SELECT FROM pg_database WHERE datname = %s", (database,))
    if found.rowcount:
        await allow_connections(cell, database, True)


async def allow_connections(cell: AsyncConnection, database: str, allowed: bool) -> None:
    """Allows or disallows new connections to a database. Existing connections stay."""
    statement = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
    await cell.execute(statement.format(sql.Identifier(database), sql.Literal(allowed)))


async def end_connections(cell: AsyncConnection, database: str, spared: Collection[int] = ()) -> None:
    """Terminates every connection to a closed database except the spared process ids. On return, no other is left.

    A connection that was being opened when the database was closed may not be in pg_stat_activity yet, but until it is,
    it holds a lock on the database. Raises EngineError if a backend does not terminate in time.
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
            raise EngineError("database_busy", "A connection to the database didn't terminate in time.", retryable=True)
        are_some = (await cell.execute(opening, (database,))).rowcount > 0
        are_some |= (await cell.execute(ending, (_END_TIMEOUT_MS, database, list(spared)))).rowcount > 0


async def wait_for_quiet(cell: AsyncConnection, database: str, spared: Collection[int], for_s: float) -> None:
    """Waits until two checks in a row find no activity in the database, or until the time is up."""
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
    """Whether the database has a prepared transaction. Terminating connections does not end those."""
    found = await cell.execute("SELECT FROM pg_prepared_xacts WHERE database = %s", (database,))
    return found.rowcount > 0


async def has_all(cell: AsyncConnection, database: str, pids: Collection[int]) -> bool:
    """Whether all of these process ids are backends of the database on this server."""
    query = "SELECT FROM pg_stat_activity WHERE datname = %s AND pid = ANY(%s)"
    return (await cell.execute(query, (database, list(pids)))).rowcount == len(set(pids))


async def take_lock(cell: AsyncConnection, names: EngineNames) -> None:
    """Takes the database's lock by terminating its holder. The caller must know that the holder may not continue."""
    ending = """
        SELECT pg_terminate_backend(l.pid, %s) FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND l.classid::bigint << 32 | l.objid::bigint = hashtextextended(%s, 0)
    """
    await cell.execute(ending, (_END_TIMEOUT_MS, names.database))
    await lock_database(cell, names)
