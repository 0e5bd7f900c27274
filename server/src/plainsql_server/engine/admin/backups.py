"""The parts of a backup or restore that need the cell's admin role.

These are the snapshot that a backup shows, the list of tables, and the idempotency records
(`engine/execution/records.py`), which are the service's own tables. Everything else is done by pg_dump and pg_restore
as the customer's role. The admin role reads only catalogs and the schema `plainsql`: it never reads, calls or creates
a tenant's objects.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from plainsql_server.core.errors import LimitError, RequestError, described
from plainsql_server.engine.admin.provisioning import admin_connection, backup_role_of, create_backup_role
from plainsql_server.engine.pool.address import Address

# The application_name of the programs of a backup, a restore and a move. They may run longer than tenants' transactions
# may. The reaper spares them while the admin has a connection to the same database whose name is theirs plus KEEPER.
BACKUP, RESTORE, MOVE = "plainsql-backup", "plainsql-restore", "plainsql-move"
KEEPER = "-keeper"

# The tables of idempotency records and the columns to copy.
RECORDS = {
    "requests": "key, request_id, body_hash, claimed_at",
    "responses": "key, body, finished_at",
}
_CONNECT_TIMEOUT_MS = 5_000
# How long to wait for a safe snapshot. Most transactions take less, and no tenant can delay a backup for longer.
_SAFE_SNAPSHOT_MS = 20_000
# A dump locks every table that it copies, in the lock table that all tenants of the cell share. It may use half of it.
_LOCKS_SHARE = 2

_TABLES = """
    SELECT n.nspname || '.' || c.relname, pg_table_size(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'plainsql')
"""
_FORCED = """
    SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relrowsecurity AND c.relforcerowsecurity ORDER BY 1, 2
"""
_SHOWN = 3
_LOCKS = """
    SELECT current_setting('max_locks_per_transaction')::int
         * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int)
"""


@dataclass(frozen=True, slots=True)
class Frozen:
    """An exported snapshot of a database, and the size of each table ("schema.table") in it.

    Every snapshot is consistent. If `is_serial`, it is also a safe snapshot: a state that some serial order of the
    transactions produces.
    """

    connection: AsyncConnection
    snapshot: str
    tables: dict[str, int]
    is_serial: bool

    async def records(self, table: str) -> AsyncIterator[bytes]:
        """The records in a table of `RECORDS` as of the snapshot, in COPY's text format."""
        statement = sql.SQL(f"COPY plainsql.{table} ({RECORDS[table]}) TO STDOUT")
        async with self.connection.cursor().copy(statement) as copy:
            async for block in copy:
                yield bytes(block)


@asynccontextmanager
async def frozen(
    conninfo: str, admin_role: str, database: str, owner_role: str, *, is_ours: bool = False
) -> AsyncIterator[Frozen]:
    """Holds an exported snapshot of a database during the block: a safe one if available within the time limit.

    If the cluster is ours alone, so that nobody writes to the database, any snapshot is safe. None is waited for then:
    what is prepared in other databases would never end. There, row security is forced on no table any more; a dump of
    the snapshot shows where it was. Also creates the role that the dump logs in as.

    Raises RequestError if the owner could not dump everything, LimitError if a dump would take too many locks.
    """
    async with admin_connection(conninfo, admin_role, database, BACKUP + KEEPER) as connection:
        await (_check_locks(connection) if is_ours else check_dumpable(connection))
        await create_backup_role(connection, owner_role)
        # This connection is idle in its transaction while the dump runs.
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        is_serial = await (_begin_alone(connection) if is_ours else _begin(connection))
        tables = dict(await (await connection.execute(_TABLES)).fetchall())
        exported = await (await connection.execute("SELECT pg_export_snapshot()")).fetchone()
        assert exported is not None
        if is_ours:
            await _end_forced_row_security(connection, backup_conninfo(conninfo, database, owner_role), owner_role)
        yield Frozen(connection, exported[0], tables, is_serial)


@asynccontextmanager
async def attended(conninfo: str, admin_role: str, database: str, program: str = RESTORE) -> AsyncIterator[None]:
    """Makes the reaper spare a restore or a move in a database during the block."""
    async with admin_connection(conninfo, admin_role, database, program + KEEPER):
        yield


async def check_dumpable(connection: AsyncConnection) -> None:
    """Raises RequestError if the owner could not dump everything, LimitError if a dump would take too many locks."""
    await _check_locks(connection)
    await _check_row_security(connection)


async def fill_records(conninfo: str, admin_role: str, database: str, table: str, blocks: AsyncIterator[bytes]) -> None:
    """Writes the output of `Frozen.records` to a database that is not in use yet."""
    statement = sql.SQL(f"COPY plainsql.{table} ({RECORDS[table]}) FROM STDIN")
    async with (
        admin_connection(conninfo, admin_role, database) as connection,
        connection.cursor().copy(statement) as copy,
    ):
        async for block in blocks:
            await copy.write(block)


async def forget_default_privileges(conninfo: str, admin_role: str, database: str, owner: str, reader: str) -> None:
    """Revokes the default privileges that provisioning granted: the dump contains the reader's grants itself."""
    async with admin_connection(conninfo, admin_role, database) as connection:
        for right in ("SELECT ON TABLES", "SELECT ON SEQUENCES", "USAGE ON SCHEMAS"):
            statement = sql.SQL(f"ALTER DEFAULT PRIVILEGES FOR ROLE {{}} REVOKE {right} FROM {{}}")
            await connection.execute(statement.format(sql.Identifier(owner), sql.Identifier(reader)))


def owners_conninfo(cell_conninfo: str, database: str, owner_role: str, program: str) -> str:
    """The connection string for pg_dump and pg_restore: as the owner, with settings that a tenant cannot override."""
    started = Address(cell_conninfo, database, owner_role).conninfo(_CONNECT_TIMEOUT_MS).decode()
    return make_conninfo(started, application_name=program)


def backup_conninfo(cell_conninfo: str, database: str, owner_role: str) -> str:
    """The connection string for the pg_dump of a backup, which must also be given `--role` with the owner role."""
    return owners_conninfo(cell_conninfo, database, backup_role_of(owner_role), BACKUP)


async def analyze(conninfo: str) -> None:
    """Runs ANALYZE as the role in the connection string, never as admin: it may call a tenant's functions."""
    try:
        async with await AsyncConnection.connect(conninfo, autocommit=True) as connection:
            await connection.execute("ANALYZE")
    except psycopg.Error as error:
        raise RequestError("analyze_failed", f"ANALYZE failed on the restored tables: {described(error)}") from error


async def _begin(connection: AsyncConnection) -> bool:
    """Begins on a safe snapshot or, after a timeout, on any, as pg_dump does. Returns whether it is safe."""
    await connection.execute(f"SET statement_timeout = {_SAFE_SNAPSHOT_MS}")
    try:
        # The first statement waits until every serializable read-write transaction that runs on the cell has ended.
        await connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE")
        await connection.execute("SELECT 1")
    except psycopg.errors.QueryCanceled:
        await connection.execute("ROLLBACK")
        await _begin_alone(connection)
        return False
    await connection.execute("SET statement_timeout = 0")
    return True


async def _begin_alone(connection: AsyncConnection) -> bool:
    """Begins on any snapshot, at once. It is safe if nobody writes: what is committed has a serial order."""
    await connection.execute("SET statement_timeout = 0")
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    return True


async def _check_locks(connection: AsyncConnection) -> None:
    counted = await connection.execute("SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p', 'm', 'S', 'v')")
    (tables,) = await counted.fetchone() or (0,)
    (locks,) = await (await connection.execute(_LOCKS)).fetchone() or (0,)
    if tables > locks // _LOCKS_SHARE:
        raise LimitError(
            "too_many_tables",
            f"The database has {tables} tables, views and sequences. A dump locks each of them and may use half of the"
            f" cell's lock table, which holds {locks} locks for all tenants.",
            hint="Raise max_locks_per_transaction on the cell and restart it.",
        )


async def _check_row_security(connection: AsyncConnection) -> None:
    forced = await (await connection.execute(_FORCED)).fetchall()
    if forced:
        shown = ", ".join(f"{schema}.{name}" for schema, name in forced[:_SHOWN])
        raise RequestError(
            "row_security_forced",
            f"FORCE ROW LEVEL SECURITY is set on {shown}, so a backup could miss rows.",
            hint="The customer can remove it: ALTER TABLE … NO FORCE ROW LEVEL SECURITY.",
        )


async def _end_forced_row_security(connection: AsyncConnection, conninfo: str, owner_role: str) -> None:
    """Let the owner read its tables, as the owner, who could always do so. No policy is evaluated, now or by a dump.

    A dump reads the tables' definitions as of its snapshot, so it has FORCE ROW LEVEL SECURITY where that was, and a
    restore sets it again. What PostgreSQL filters is decided by what is set when it reads the rows.
    """
    forced = await (await connection.execute(_FORCED)).fetchall()
    if not forced:
        return
    try:
        async with await AsyncConnection.connect(conninfo, autocommit=True) as owner:
            await owner.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(owner_role)))
            for table in forced:
                await owner.execute(
                    sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(sql.Identifier(*table))
                )
    except psycopg.Error as error:
        raise RequestError(
            "row_security_forced", f"FORCE ROW LEVEL SECURITY can't be removed: {described(error)}"
        ) from error
