"""What a backup needs from a cell beyond what the customer's own role may see or do there.

Owns the moment that a backup shows, what there is to copy, and the records of requests (`engine/execution/records.py`),
which are the service's own tables. All else of a backup is done as the customer's role, by pg_dump and
pg_restore: as admin, nothing of a tenant's is read, called or created here, only catalogs and the schema plainsql.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from plainsql_server.core.errors import LimitError, RequestError
from plainsql_server.engine.admin.provisioning import admin_connection
from plainsql_server.engine.pool.address import Address

# What the programs of a backup, a restore and a move are called on the cell. They may take longer than any transaction
# of their customer's may, and the reaper lets them as long as the admin's connection is there, which has this behind
# their name.
BACKUP, RESTORE, MOVE = "plainsql-backup", "plainsql-restore", "plainsql-move"
KEEPER = "-keeper"

# The tables of records and their columns, as they are copied.
RECORDS = {
    "requests": "key, request_id, body_hash, claimed_at",
    "responses": "key, body, finished_at",
}
_CONNECT_TIMEOUT_MS = 5_000
# Most transactions take less, and no customer of the cell can hold a backup up for longer.
_SAFE_MOMENT_MS = 20_000
# A dump locks every table that it copies, in a table of locks that all tenants of the cell share.
_LOCKS_SHARE = 2

_TABLES = """
    SELECT n.nspname || '.' || c.relname, pg_table_size(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'plainsql')
"""
_FORCED = """
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relrowsecurity AND c.relforcerowsecurity ORDER BY 1 LIMIT 3
"""
_LOCKS = """
    SELECT current_setting('max_locks_per_transaction')::int
         * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int)
"""


@dataclass(frozen=True, slots=True)
class Frozen:
    """One moment of a database: its snapshot, and the size of each table ("schema.table") then.

    Only if it `is_serial` can no customer tell that it was not the only one at work; every moment is consistent.
    """

    connection: AsyncConnection
    snapshot: str
    tables: dict[str, int]
    is_serial: bool

    async def records(self, table: str) -> AsyncIterator[bytes]:
        """The records in a table of `RECORDS`, as they were at that moment, in COPY's text form."""
        statement = sql.SQL(f"COPY plainsql.{table} ({RECORDS[table]}) TO STDOUT")
        async with self.connection.cursor().copy(statement) as copy:
            async for block in copy:
                yield bytes(block)


@asynccontextmanager
async def frozen(conninfo: str, admin_role: str, database: str) -> AsyncIterator[Frozen]:
    """A moment of a database, kept for the length of the block: of a serial history, if one comes soon.

    Raises RequestError if the database cannot be dumped as its owner, LimitError if that would take too many locks.
    """
    async with admin_connection(conninfo, admin_role, database, BACKUP + KEEPER) as connection:
        await check_dumpable(connection)
        # It says nothing while the dump runs.
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        is_serial = await _begin(connection)
        tables = dict(await (await connection.execute(_TABLES)).fetchall())
        exported = await (await connection.execute("SELECT pg_export_snapshot()")).fetchone()
        assert exported is not None
        yield Frozen(connection, exported[0], tables, is_serial)


@asynccontextmanager
async def attended(conninfo: str, admin_role: str, database: str, program: str = RESTORE) -> AsyncIterator[None]:
    """Keeps the reaper from what a restore or a move does in a database, for the length of the block."""
    async with admin_connection(conninfo, admin_role, database, program + KEEPER):
        yield


async def check_dumpable(connection: AsyncConnection) -> None:
    """Raises RequestError if the owner could not dump everything, LimitError if that would take too many locks."""
    await _check_locks(connection)
    await _check_row_security(connection)


async def fill_records(conninfo: str, admin_role: str, database: str, table: str, blocks: AsyncIterator[bytes]) -> None:
    """Writes what `Frozen.records` gave into a database that nobody uses yet."""
    statement = sql.SQL(f"COPY plainsql.{table} ({RECORDS[table]}) FROM STDIN")
    async with (
        admin_connection(conninfo, admin_role, database) as connection,
        connection.cursor().copy(statement) as copy,
    ):
        async for block in blocks:
            await copy.write(block)


async def forget_default_privileges(conninfo: str, admin_role: str, database: str, owner: str, reader: str) -> None:
    """Takes back what provisioning grants ahead: what is restored says itself what its reader may see."""
    async with admin_connection(conninfo, admin_role, database) as connection:
        for right in ("SELECT ON TABLES", "SELECT ON SEQUENCES", "USAGE ON SCHEMAS"):
            statement = sql.SQL(f"ALTER DEFAULT PRIVILEGES FOR ROLE {{}} REVOKE {right} FROM {{}}")
            await connection.execute(statement.format(sql.Identifier(owner), sql.Identifier(reader)))


def owners_conninfo(cell_conninfo: str, database: str, owner_role: str, program: str) -> str:
    """How a program of a backup logs in: as the customer's role, with settings that no customer can have changed."""
    started = Address(cell_conninfo, database, owner_role).conninfo(_CONNECT_TIMEOUT_MS).decode()
    return make_conninfo(started, application_name=program)


async def analyze(conninfo: str) -> None:
    """Gathers statistics of everything, as whoever the connection string says: that may run a customer's functions."""
    try:
        async with await AsyncConnection.connect(conninfo, autocommit=True) as connection:
            await connection.execute("ANALYZE")
    except psycopg.Error as error:
        raise RequestError("analyze_failed", f"The restored tables could not be analyzed: {error}") from error


async def _begin(connection: AsyncConnection) -> bool:
    """Begins at a moment that is safe, or after a while at any, as pg_dump does; whether it was safe."""
    await connection.execute(f"SET statement_timeout = {_SAFE_MOMENT_MS}")
    try:
        # It waits until every transaction of the cell that writes now has ended, with its first statement.
        await connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE")
        await connection.execute("SELECT 1")
    except psycopg.errors.QueryCanceled:
        await connection.execute("ROLLBACK")
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return False
    await connection.execute("SET statement_timeout = 0")
    return True


async def _check_locks(connection: AsyncConnection) -> None:
    counted = await connection.execute("SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p', 'm', 'S', 'v')")
    (tables,) = await counted.fetchone() or (0,)
    (locks,) = await (await connection.execute(_LOCKS)).fetchone() or (0,)
    if tables > locks // _LOCKS_SHARE:
        raise LimitError(
            "too_many_tables",
            f"The database has {tables} tables, views and sequences, and its cell {locks} locks for all tenants.",
            hint="Raise max_locks_per_transaction on the cell, then restart it.",
        )


async def _check_row_security(connection: AsyncConnection) -> None:
    forced = [name for (name,) in await (await connection.execute(_FORCED)).fetchall()]
    if forced:
        raise RequestError(
            "row_security_forced",
            f"Row security is forced upon the owner of {', '.join(forced)}, so that a backup could miss rows.",
            hint="Its customer can take that off: ALTER TABLE … NO FORCE ROW LEVEL SECURITY.",
        )
