"""Makes a tenant's database from another one of the same customer, by PostgreSQL's template copy.

    async with chosen(cell.conninfo, cell.admin_role, names_of(parent), customer_id, branches) as parent:
        await copy(parent, names_of(branch), secret, held, begin)

CREATE DATABASE copies everything as it is, and so with the parent's roles. `hand_over` then gives everything to the
branch's own roles, in one transaction that runs none of the tenant's code (docs/decisions/0031-branches.md). Until it
has committed, no tenant can connect to the copy. A copy that fails is never completed: the caller drops it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import EngineError, InternalError, LimitError
from plainsql_server.core.tasks import end
from plainsql_server.engine.admin import fencing, provisioning
from plainsql_server.engine.admin.backups import BACKUP, KEEPER, MOVE, RESTORE
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.hand_over import hand_over
from plainsql_server.engine.admin.hardening import pins
from plainsql_server.engine.admin.measures import KEPT_FREE_RATIO, disk_space
from plainsql_server.engine.admin.provisioning import EngineNames, admin_connection, backup_role_of, try_lock

# The largest database that can be branched, which bounds how long its requests wait, and how large all branches of a
# customer on one cell may be together.
MAX_PARENT_BYTES = 2 * 1024**3
MAX_BRANCHES_BYTES = 8 * 1024**3

# A copy takes no more than a quarter of what is free on the disk: others may be made at the same time. And it leaves
# KEPT_FREE_RATIO of the disk free, for what all tenants of the cell write: below that, `doctor` warns.
_PART_OF_FREE = 4

# Up to this size, the copy goes through the WAL, which takes no checkpoint. Above, files are copied, between two
# checkpoints: they flush what every tenant of the cell has written, but the WAL gets nothing of the copy.
_WAL_LOG_BYTES = 64 * 1024 * 1024
# How long running statements may take while requests are held, and how long CREATE DATABASE may then wait for them.
_QUIET_S = 0.5
_CREATION_WAITS_S = 0.5
# The pauses between the attempts to find the parent quiet. Requests are held in each attempt, and not in the pauses.
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
_LOOK_EVERY_S = 0.005
_RETRY_AFTER_MS = 5_000
_UNKNOWN_RETRY_AFTER_MS = 60_000

_SIZES = "SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = ANY(%s)"
_EDITION = "SELECT coalesce(shobj_description(oid, 'pg_database'), 'unknown') FROM pg_database WHERE datname = %s"
_CLONE = """
    SELECT set_config('file_copy_method', 'clone', false) FROM pg_settings
    WHERE name = 'file_copy_method' AND 'clone' = ANY(enumvals)
"""
# Programs that must not be cut off, with any role.
_PROGRAMS = """
    SELECT FROM pg_stat_activity WHERE datname = %s AND application_name = ANY(%s) AND backend_type = 'client backend'
"""
# What CREATE DATABASE would have to wait for: transactions that are not short, and backends that it can't make go away
# because they aren't the customer's. Autovacuum makes way by itself.
_BUSY = f"""
    SELECT FROM pg_stat_activity
    WHERE datname = %s AND backend_type <> 'autovacuum worker'
      AND (coalesce(usename <> ALL(%s), true) OR xact_start < clock_timestamp() - interval '{_QUIET_S} s')
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
_CONNECTED = "SELECT FROM pg_stat_activity WHERE datname = %s AND backend_type <> 'autovacuum worker'"
_BELONGS_TO = """
    SELECT FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid JOIN pg_authid r ON r.oid = s.refobjid
    WHERE d.datname = %s AND s.refclassid = 'pg_authid'::regclass AND r.rolname = ANY(%s)
"""

Held = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Parent:
    """A database that is locked to be copied."""

    cell: AsyncConnection
    """A connection of the admin role that holds the locks."""
    admin: tuple[str, str]
    """How to connect to the cell: connection string and role."""
    names: EngineNames
    size_bytes: int


@asynccontextmanager
async def chosen(
    conninfo: str, admin_role: str, parent: EngineNames, customer_id: str, branches: Callable[[], Awaitable[list[str]]]
) -> AsyncIterator[Parent]:
    """Locks a database for a copy, during the block, unless something speaks against one; and waits for nothing.

    `branches` lists those that the customer has on the cell. Raises LimitError if they or the database are too large,
    and EngineError if the customer has another branch made, if someone else works on the database, if it is not known
    what is free on the cell's disk, or if the cell is unavailable.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        if not await try_lock(cell, f"branches of {customer_id}"):
            raise busy("Another branch is being made in your organization.")
        size_bytes = await _check_sizes(cell, parent, await branches())
        if not await try_lock(cell, parent.database):
            raise busy("The database is being moved, restored or changed in another way.")
        yield Parent(cell, (conninfo, admin_role), parent, size_bytes)


async def check_sizes(conninfo: str, admin_role: str, parent: EngineNames, branches: Sequence[str]) -> None:
    """Raises LimitError if the database, or it and all branches, are too large for another branch, or its disk is full.

    Raises EngineError if it is not known what is free on the cell's disk, or if the cell is unavailable.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await _check_sizes(cell, parent, branches)


async def copy(parent: Parent, names: EngineNames, record_secret: str, held: Held, begin: Callable[[], None]) -> None:
    """Makes the branch with its two login roles, and lets them connect. Must be called once for these names.

    `held` holds the requests to the parent during a block, and raises an error if the parent must not be copied now.
    `begin` is called when the cell is about to have work with the copy. The branch is locked until the end of the block
    of `chosen`. Raises EngineError if the cell is unavailable or the parent stays busy, LimitError if its disk is full,
    and InternalError if a statement fails.
    """
    if not await try_lock(parent.cell, names.database):
        raise InternalError(f"someone else works on the branch {names.database}")
    edition = await _copy(parent, names, held, begin)
    async with admin_connection(*parent.admin, names.database) as database:
        await hand_over(database, parent.names, names, record_secret, edition)
    await _check_own(parent, names)
    await provisioning.open_to_tenants(parent.cell, names)


def busy(reason: str) -> EngineError:
    """The error for a branch that can't be made at the moment."""
    return EngineError("database_busy", reason, retryable=True, retry_after_ms=_RETRY_AFTER_MS)


async def _check_sizes(cell: AsyncConnection, parent: EngineNames, branches: Sequence[str]) -> int:
    """The size of the parent. Raises LimitError if it, or it and all branches, are too large, or for want of room."""
    sizes: dict[str, int | None] = dict(await (await cell.execute(_SIZES, ([parent.database, *branches],))).fetchall())
    size_bytes = sizes.get(parent.database)
    if size_bytes is None:
        raise InternalError(f"the database {parent.database} is not on its cell")
    if size_bytes > MAX_PARENT_BYTES:
        raise _too_large(
            f"The database has {size_bytes:,} bytes; one of at most {MAX_PARENT_BYTES:,} bytes can be branched."
        )
    together = size_bytes + sum(sizes.get(name) or 0 for name in branches)
    if together > MAX_BRANCHES_BYTES:
        raise _too_large(
            f"Your branches would have {together:,} bytes; together, they may have {MAX_BRANCHES_BYTES:,} bytes.",
            "Delete a branch permanently.",
        )
    await _check_room(cell, int(size_bytes))
    return int(size_bytes)


async def _check_room(cell: AsyncConnection, size_bytes: int) -> None:
    """Raises LimitError if a copy of so many bytes has no room on the cell's disk, EngineError if that is not known."""
    space = await disk_space(cell)
    if space is None:
        raise EngineError(
            "creation_unavailable", "No branches can be made on the server that holds the database at the moment.",
            retryable=True, retry_after_ms=_UNKNOWN_RETRY_AFTER_MS,
            internal_context="What is free on the cell's disk is not known: `plainsql-server doctor` says why.",
        )  # fmt: skip
    kept_bytes = int(space.total_bytes * KEPT_FREE_RATIO)
    needed_bytes = max(size_bytes * _PART_OF_FREE, size_bytes + kept_bytes)
    if needed_bytes > space.free_bytes:
        raise _too_large(
            f"The database has {size_bytes:,} bytes, and its server has no room for a copy of it.",
            internal_context=f"{space.free_bytes:,} bytes are free there, and must be {needed_bytes:,}.",
        )


def _too_large(message: str, hint: str | None = None, *, internal_context: str | None = None) -> LimitError:
    return LimitError("branch_too_large", message, hint=hint, internal_context=internal_context)


async def _copy(parent: Parent, names: EngineNames, held: Held, begin: Callable[[], None]) -> str:
    """Makes a copy that only superusers can connect to. Returns the parent's version of privileges and functions."""
    cell = parent.cell
    await provisioning.create_roles(cell, names)
    found = await (await cell.execute(_EDITION, (parent.names.database,))).fetchone()
    edition = "unknown" if found is None else str(found[0])
    await cell.execute(_CLONE)
    try:
        await _copy_when_quiet(parent, names, held, begin)
    except psycopg.errors.DiskFull as error:
        raise _too_large("The server that holds the database has no room for a copy of it.") from error
    # A new database allows CONNECT to PUBLIC, so it disallows all connections until that is revoked. The mark is there
    # before the first connection, and `hand_over` replaces it.
    closed = sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(names.database))
    marked = provisioning.comment(names.database, provisioning.HALF_COPY)
    await provisioning.run(cell, [marked, closed, *pins("DATABASE", names.database)])
    await fencing.allow_connections(cell, names.database, True)
    return edition


async def _check_own(parent: Parent, names: EngineNames) -> None:
    """Raises InternalError if something in the copy still belongs to the parent's roles: it would go with them."""
    parents = [parent.names.owner_role, parent.names.reader_role, backup_role_of(parent.names.owner_role)]
    if (await parent.cell.execute(_BELONGS_TO, (names.database, parents))).rowcount:
        raise InternalError(f"the copy {names.database} still has something of its parent's roles")


async def _copy_when_quiet(parent: Parent, names: EngineNames, held: Held, begin: Callable[[], None]) -> None:
    """Runs the creation at a moment without statements in the parent. Requests are held for no more than that."""
    strategy = "WAL_LOG" if parent.size_bytes <= _WAL_LOG_BYTES else "FILE_COPY"
    creation = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {} ALLOW_CONNECTIONS false").format(
        sql.Identifier(names.database), sql.Identifier(parent.names.database), sql.SQL(strategy)
    )
    is_flushed = strategy == "WAL_LOG"
    for pause_s in (*_PAUSES_S, 0.0):
        if not await _is_busy(parent):
            begin()
            if not is_flushed:
                # CREATE DATABASE begins with a checkpoint, which is short if there has just been one.
                await parent.cell.execute("CHECKPOINT")
                is_flushed = True
            async with held():
                await fencing.wait_for_quiet(parent.cell, parent.names.database, (), _QUIET_S)
                if not await _is_busy(parent) and await _create(parent, creation):
                    return
        await asyncio.sleep(pause_s)
    raise busy("The database has long transactions, a backup or a connection of the operator's.")


async def _is_busy(parent: Parent) -> bool:
    database = parent.names.database
    programs = [program + suffix for program in (BACKUP, RESTORE, MOVE) for suffix in ("", KEEPER)]
    if (await parent.cell.execute(_PROGRAMS, (database, programs))).rowcount:
        return True
    roles = [parent.names.owner_role, parent.names.reader_role]
    return (await parent.cell.execute(_BUSY, (database, roles, database))).rowcount > 0


async def _create(parent: Parent, creation: sql.Composed) -> bool:
    """Runs the creation. Returns False if a statement or a prepared transaction was in its way after all.

    CREATE DATABASE lets no new connection into the parent, but waits for those that exist. Idle ones are ended as soon
    as it does; running ones are not.
    """
    # The lock may have to be waited for, too, and connections wait behind it.
    wait_ms = round(_CREATION_WAITS_S * 1000)
    await parent.cell.execute(f"SET lock_timeout = {wait_ms}")
    async with admin_connection(*parent.admin, MAINTENANCE_DATABASE) as second:
        clearing = asyncio.create_task(_clear_way(second, parent))
        try:
            await parent.cell.execute(creation)
        except (psycopg.errors.ObjectInUse, psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            if clearing.done():
                # It may have failed itself, and then the creation waited for longer than it should.
                await clearing
            return False
        finally:
            await end(clearing)
    await parent.cell.execute(f"SET lock_timeout = {provisioning.LOCK_TIMEOUT_MS}")
    return True


async def _clear_way(second: AsyncConnection, parent: Parent) -> None:
    """Ends idle connections to the parent when no new ones come, and the creation if others stay too long.

    As soon as no connection is left, PostgreSQL copies, and there is nothing to look for.
    """
    database, pid = parent.names.database, parent.cell.info.backend_pid
    is_closed = False
    while not is_closed:
        await asyncio.sleep(_LOOK_EVERY_S)
        is_closed = (await second.execute(_IS_CLOSED, (database, pid))).rowcount > 0
    roles = [parent.names.owner_role, parent.names.reader_role]
    end_s = time.monotonic() + _CREATION_WAITS_S
    while (await second.execute(_CONNECTED, (database,))).rowcount:
        if time.monotonic() > end_s:
            await second.execute("SELECT pg_cancel_backend(%s)", (pid,))
            return
        await second.execute(_END_IDLE, (database, roles))
        await asyncio.sleep(_LOOK_EVERY_S)
