"""Makes a tenant's database from another one of the same customer, by PostgreSQL's template copy.

    await create_branch(cell.conninfo, cell.admin_role, names_of(parent), names_of(branch), secret, steps=steps)

CREATE DATABASE copies everything as it is, and so with the parent's roles. `hand_over` then gives everything to the
branch's own roles, in one transaction that runs none of the tenant's code (docs/decisions/0031-branches.md). Until it
has committed, no tenant can connect to the copy, and a copy that it has not committed in is dropped and made again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.engine.admin import fencing, provisioning
from plainsql_server.engine.admin.backups import BACKUP, KEEPER, MOVE, RESTORE
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.hand_over import hand_over
from plainsql_server.engine.admin.hardening import pins
from plainsql_server.engine.admin.provisioning import EngineNames, admin_connection, lock_database

# Up to this size, the copy goes through the WAL, which takes no checkpoint. Above, files are copied, between two
# checkpoints: they flush what every tenant of the cell has written, but the WAL gets nothing of the copy.
_WAL_LOG_BYTES = 64 * 1024 * 1024
# How long running statements may take while requests are held, and how long to try until the database is quiet.
_QUIET_S = 0.5
_TRY_FOR_S = 30.0
_PAUSE_S = 0.25
_LOOK_EVERY_S = 0.005
_OLD_STATEMENT = f"{_QUIET_S} s"

_EXISTS = "SELECT FROM pg_database WHERE datname = %s"
# A database without the comment is a copy that was not handed over.
_IS_COMPLETE = "SELECT FROM pg_database WHERE datname = %s AND shobj_description(oid, 'pg_database') IS NOT NULL"
_SOURCE = """
    SELECT pg_database_size(oid), coalesce(shobj_description(oid, 'pg_database'), 'unknown')
    FROM pg_database WHERE datname = %s
"""
_CLONE = """
    SELECT set_config('file_copy_method', 'clone', false) FROM pg_settings
    WHERE name = 'file_copy_method' AND 'clone' = ANY(enumvals)
"""
# Programs that must not be cut off, and what the copy would have to wait for for longer than requests may be held.
_PROGRAMS = """
    SELECT FROM pg_stat_activity WHERE datname = %s AND application_name = ANY(%s) AND backend_type = 'client backend'
"""
_BUSY = f"""
    SELECT FROM pg_stat_activity
    WHERE datname = %s AND backend_type = 'client backend' AND state <> 'idle'
      AND state_change < clock_timestamp() - interval '{_OLD_STATEMENT}'
    UNION ALL SELECT FROM pg_prepared_xacts WHERE database = %s
"""
_IS_CLOSED = """
    SELECT FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND granted
      AND objid = (SELECT oid FROM pg_database WHERE datname = %s) AND mode = 'ShareLock' AND pid = %s
"""
_END_IDLE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = %s AND backend_type = 'client backend' AND state = 'idle' AND usename = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class Steps:
    """What the directory has to do with a copy."""

    is_wanted: Callable[[], Awaitable[bool]]
    """Whether the branch is still to be made. Called under the locks of both databases."""
    held: Callable[[], AbstractAsyncContextManager[None]]
    """Holds the requests to the parent during a block. Raises an error if the parent must not be copied now."""
    copied: Callable[[], Awaitable[None]]
    """Called after the copy, while the parent is still locked."""


async def create_branch(
    conninfo: str, admin_role: str, parent: EngineNames, names: EngineNames, record_secret: str, *, steps: Steps
) -> None:
    """Makes the branch with its two login roles. Can be run again until it succeeds.

    Raises EngineError if the cell is unavailable or the parent stays busy, InternalError if a statement fails.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        # In one order, because each may be the other's branch.
        for each in sorted((parent, names), key=lambda each: each.database):
            await lock_database(cell, each)
        if not await steps.is_wanted():
            return
        if not (await cell.execute(_IS_COMPLETE, (names.database,))).rowcount:
            edition = await _copy_anew(cell, (conninfo, admin_role), parent, names, steps)
            async with admin_connection(conninfo, admin_role, names.database) as database:
                await hand_over(database, parent, names, record_secret, edition)
        await steps.copied()
        await provisioning.open_to_tenants(cell, names)


async def _copy_anew(
    cell: AsyncConnection, admin: tuple[str, str], parent: EngineNames, names: EngineNames, steps: Steps
) -> str:
    """Makes a copy that only superusers can connect to. Returns the parent's version of privileges and functions."""
    await cell.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(names.database)))
    await provisioning.create_roles(cell, names)
    found = await (await cell.execute(_SOURCE, (parent.database,))).fetchone()
    if found is None:
        raise InternalError(f"the database {parent.database} is not on its cell")
    size_bytes, edition = found
    strategy = "WAL_LOG" if size_bytes <= _WAL_LOG_BYTES else "FILE_COPY"
    if strategy == "FILE_COPY":
        # CREATE DATABASE begins with a checkpoint, which is short if there has just been one.
        await cell.execute("CHECKPOINT")
    await cell.execute(_CLONE)
    await _copy_when_quiet(cell, admin, parent, _creation(parent, names, strategy), steps)
    # A new database allows CONNECT to PUBLIC, so it disallows all connections until that is revoked.
    closed = sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(names.database))
    await provisioning.run(cell, [closed, *pins("DATABASE", names.database)])
    await fencing.allow_connections(cell, names.database, True)
    return str(edition)


def _creation(parent: EngineNames, names: EngineNames, strategy: str) -> sql.Composed:
    return sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {} ALLOW_CONNECTIONS false").format(
        sql.Identifier(names.database), sql.Identifier(parent.database), sql.SQL(strategy)
    )


async def _copy_when_quiet(
    cell: AsyncConnection, admin: tuple[str, str], parent: EngineNames, creation: sql.Composed, steps: Steps
) -> None:
    """Runs the creation at a moment without statements in the parent. Requests are held for no more than that."""
    end_s = time.monotonic() + _TRY_FOR_S
    while time.monotonic() < end_s:
        if not await _is_busy(cell, parent.database):
            async with steps.held():
                await fencing.wait_for_quiet(cell, parent.database, (), _QUIET_S)
                if not await _is_busy(cell, parent.database) and await _copy(cell, admin, parent, creation):
                    return
        await asyncio.sleep(_PAUSE_S)
    raise EngineError(
        "database_busy", "The database that was to be copied had long statements or a backup running all the time.",
        retryable=True, retry_after_ms=5_000,
    )  # fmt: skip


async def _is_busy(cell: AsyncConnection, database: str) -> bool:
    programs = [program + suffix for program in (BACKUP, RESTORE, MOVE) for suffix in ("", KEEPER)]
    if (await cell.execute(_PROGRAMS, (database, programs))).rowcount:
        return True
    return (await cell.execute(_BUSY, (database, database))).rowcount > 0


async def _copy(cell: AsyncConnection, admin: tuple[str, str], parent: EngineNames, creation: sql.Composed) -> bool:
    """Runs the creation. Returns False if a statement or a prepared transaction was in its way after all.

    CREATE DATABASE lets no new connection into the parent, but waits for those that exist. Idle ones are ended as soon
    as it does; running ones are not.
    """
    async with admin_connection(*admin, MAINTENANCE_DATABASE) as second:
        ending = asyncio.create_task(_end_idle(second, cell.info.backend_pid, parent))
        try:
            await cell.execute(creation)
        except psycopg.errors.ObjectInUse:
            return False
        finally:
            ending.cancel()
            await asyncio.wait([ending])
        return True


async def _end_idle(second: AsyncConnection, creating_pid: int, parent: EngineNames) -> None:
    roles = [parent.owner_role, parent.reader_role]
    while True:
        if (await second.execute(_IS_CLOSED, (parent.database, creating_pid))).rowcount:
            await second.execute(_END_IDLE, (parent.database, roles))
        await asyncio.sleep(_LOOK_EVERY_S)
