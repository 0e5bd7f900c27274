"""The content of a database at a time at which nobody wrote to it: rows and a checksum of each of its tables.

    live = await contents_of(cell, database, limit_s=1800)
    restored = await contents_of(spare, database)
    found = differences(live, restored)

Two copies can only be compared if both are of the same state. So all tables are locked against writers, for as long as
it takes to read the clock and to take the snapshot that is then read: a few milliseconds, in which nothing is committed
in the database. Every transaction that the snapshot shows has a commit record before that time in the WAL, and every
other one has it after that, so recovery to that time gives exactly what the snapshot shows. If a table can't be locked
at once, no writer waits for us: the lock is given up, and tried again later.

PostgreSQL ends the lock if this process does not go on, so the customer's transactions wait for half a second at most.

Tables are locked and read as a backup does it, by the owner's rights and with a login that the customer can't end. They
are read by COPY, and rows are hashed here: PostgreSQL plans any other statement, and evaluates the constant parts of
the customer's indexes and statistics for that. The text of a row comes from the types' output functions, which only
superusers can define.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

import psycopg
from psycopg import AsyncConnection, errors, sql

from plainsql_server.core.errors import ConflictError, LimitError, RequestError, described
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin.backups import BACKUP, KEEPER, backup_conninfo, check_dumpable
from plainsql_server.engine.admin.provisioning import admin_connection, create_backup_role
from plainsql_server.engine.admin.snapshot import fingerprint_of

# How long to wait for the locks: at first no longer than PostgreSQL can measure, so that no writer ever waits. Where
# writers always overlap, only a lock that they wait for can be had.
_WAITS_MS = (*[1] * 20, *[100] * 10)
_PAUSE_S = 0.25
# All locks together, and then until the lock is given up. A writer waits for no longer than both.
_LOCKING_MS = 250
_LOCKED_MS = 250
_ATTEMPTS = 3
_SHOWN = 3

# Of unlogged tables, nothing is in the WAL. What an extension made, the customer can't write. A table that the owner
# can't lock or read is one whose privileges it has revoked from itself.
_TABLES = """
    SELECT c.oid, n.nspname::text, c.relname::text, c.relfilenode,
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
           AND has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND c.relpersistence = 'p'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'plainsql')
      AND NOT EXISTS (SELECT FROM pg_depend d
                      WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
    ORDER BY c.oid
"""
# The columns to compare. COPY has no generated ones. The text of the types named here depends on what an OID refers to
# at the time, maybe outside of the database, and so does that of types which contain them.
_COLUMNS = """
    WITH RECURSIVE by_oid AS (
        SELECT oid FROM pg_type
        WHERE typnamespace = 'pg_catalog'::regnamespace AND (typname LIKE 'reg%%' OR typname = 'aclitem')
        UNION
        SELECT parts.whole FROM by_oid JOIN (
            SELECT typelem AS part, oid AS whole FROM pg_type
            UNION ALL SELECT typbasetype, oid FROM pg_type
            UNION ALL SELECT rngsubtype, rngtypid FROM pg_range
            UNION ALL SELECT rngsubtype, rngmultitypid FROM pg_range
            UNION ALL SELECT a.atttypid, c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            WHERE a.attnum > 0 AND NOT a.attisdropped AND c.reltype <> 0
        ) AS parts ON parts.part = by_oid.oid
    )
    SELECT attrelid, attname::text FROM pg_attribute
    WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
      AND atttypid NOT IN (SELECT oid FROM by_oid)
    ORDER BY attrelid, attnum
"""
# What the text of a value depends on, beyond what every connection of the service begins with; and limits: a snapshot
# keeps vacuum from removing rows, so it must not last if this process stands still.
_ALIKE = """
    SET lc_monetary = 'C'; SET xmlbinary = 'base64'; SET search_path = ''; SET row_security = off;
    SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '1min'
"""
_HASH_BYTES = 8
# The table is locked by others, has another name, or is gone since it was listed.
_TRY_AGAIN = (
    errors.LockNotAvailable, errors.QueryCanceled, errors.UndefinedTable, errors.InvalidSchemaName,
    errors.WrongObjectType, errors.InsufficientPrivilege, errors.DeadlockDetected,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableContent:
    """A table's name, rows and checksum, which does not depend on the order of the rows."""

    name: str
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The tables of a database by their OIDs, which a copy of the cell's files has, too."""

    taken_at: datetime
    tables: Mapping[int, TableContent]
    skipped: int
    """Tables that the owner may not lock or read itself."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())


@dataclass(frozen=True, slots=True)
class _Table:
    oid: int
    schema: str
    name: str
    # A snapshot does not show the rows of a table that was emptied or rewritten after it. Either gives it a new file.
    file: int

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


class _Changed(Exception):
    """Something was defined anew or emptied meanwhile, so that what was read is not of one state."""


async def contents_of(cell: CellRecord, database: DatabaseRecord, *, limit_s: float | None = None) -> Contents:
    """The content of the database on that cell, as of one time at which nothing was written.

    Raises ConflictError if it is always being written, LimitError if that takes longer than `limit_s`, RequestError if
    its owner could not read everything, EngineError if the cell is unavailable.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await _contents_of(cell, database, limit_s)
    except TimeoutError:
        raise LimitError(
            "statement_timeout", f"Reading the database {database.id} takes longer than {limit_s:.0f} seconds."
        ) from None


async def _contents_of(cell: CellRecord, database: DatabaseRecord, limit_s: float | None) -> Contents:
    async with admin_connection(cell.conninfo, cell.admin_role, database.engine_name, BACKUP + KEEPER) as admin:
        await check_dumpable(admin)
        await create_backup_role(admin, database.owner_role)
        for _ in range(_ATTEMPTS):
            try:
                return await _read(cell, database, limit_s)
            except _Changed:
                continue
            except psycopg.Error as error:
                why = _printable(described(error))
                raise RequestError("read_failed", f"The database {database.id} can't be read: {why}") from error
    raise ConflictError("tables_in_use", f"The definitions in the database {database.id} change all the time.")


def differences(expected: Contents, found: Contents) -> list[str]:
    """What differs between two contents of one database, a phrase for each table."""
    differing = []
    for oid, table in expected.tables.items():
        other = found.tables.get(oid)
        if other is None:
            differing.append(f"{table.name} is missing")
        elif other.rows != table.rows:
            differing.append(f"{table.name} has {other.rows} rows instead of {table.rows}")
        elif other.checksum != table.checksum:
            differing.append(f"{table.name} has other values in its {table.rows} rows")
    differing += [
        f"{table.name} should not be there" for oid, table in found.tables.items() if oid not in expected.tables
    ]
    more = len(differing) - _SHOWN
    return differing[:_SHOWN] + ([f"{more} more tables differ"] if more > 0 else [])


async def _read(cell: CellRecord, database: DatabaseRecord, limit_s: float | None) -> Contents:
    async with as_owner(cell, database) as reader:
        # PostgreSQL ends what this process doesn't.
        await reader.execute(f"SET statement_timeout = {round((limit_s or 0) * 1000)}".encode())
        taken_at, tables, skipped = await _snapshot(cell, database, reader)
        fingerprint, columns = await fingerprint_of(reader), await _columns(reader, tables)
        contents = {table.oid: await _content(reader, table, columns[table.oid]) for table in tables}
        # The snapshot is held, but it has no effect on how PostgreSQL writes a row: a label or a column may be new.
        async with as_owner(cell, database) as now:
            if (tables, fingerprint) != ((await _listed(now))[0], await fingerprint_of(now)):
                raise _Changed
    return Contents(taken_at, contents, skipped)


@asynccontextmanager
async def as_owner(cell: CellRecord, database: DatabaseRecord) -> AsyncIterator[AsyncConnection]:
    """A connection with the rights of the database's owner."""
    conninfo = backup_conninfo(cell.conninfo, database.engine_name, database.owner_role)
    async with await AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(database.owner_role)))
        await connection.execute(_ALIKE)
        yield connection


async def _snapshot(
    cell: CellRecord, database: DatabaseRecord, reader: AsyncConnection
) -> tuple[datetime, list[_Table], int]:
    """Begin the reader's transaction at a time at which nobody writes; return it with the tables that can be locked."""
    for wait_ms in _WAITS_MS:
        try:
            async with as_owner(cell, database) as locker:
                tables = await lock_tables(locker, wait_ms)
                await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                # The transaction's snapshot is that of its first statement.
                (taken_at,) = await (await reader.execute("SELECT clock_timestamp()")).fetchone() or (None,)
                # If PostgreSQL has ended the lock by now, the snapshot may be later than that.
                await locker.execute("ROLLBACK")
            listed, skipped = await _listed(reader)
            if taken_at is not None and listed == tables:
                return taken_at, tables, skipped
        except (*_TRY_AGAIN, errors.IdleInTransactionSessionTimeout):
            pass
        await reader.execute("ROLLBACK")
        await asyncio.sleep(_PAUSE_S)
    raise ConflictError(
        "tables_in_use", "The database is being written all the time, so that no state of it can be compared."
    )


async def _listed(connection: AsyncConnection) -> tuple[list[_Table], int]:
    """The tables to lock and to read, and how many others there are."""
    rows = await (await connection.execute(_TABLES)).fetchall()
    tables = [_Table(oid, schema, name, file) for oid, schema, name, file, is_ours in rows if is_ours]
    return tables, len(rows) - len(tables)


async def lock_tables(locker: AsyncConnection, wait_ms: int) -> list[_Table]:
    """Lock the tables against writers until the end of the transaction, or of the time that PostgreSQL allows.

    Raises psycopg.Error if a table can't be locked within `wait_ms`.
    """
    tables, _ = await _listed(locker)
    await locker.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    if tables:
        limits = f"SET LOCAL lock_timeout = {wait_ms}; SET LOCAL statement_timeout = {_LOCKING_MS}"
        await locker.execute(f"{limits}; SET LOCAL idle_in_transaction_session_timeout = {_LOCKED_MS}".encode())
        listed = sql.SQL(", ").join(sql.SQL("ONLY {}").format(each.identifier) for each in tables)
        await locker.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(listed))
    return tables


async def _columns(reader: AsyncConnection, tables: Sequence[_Table]) -> dict[int, list[str]]:
    """The columns to compare, by the OID of their table."""
    columns: defaultdict[int, list[str]] = defaultdict(list)
    for oid, name in await (await reader.execute(_COLUMNS, ([table.oid for table in tables],))).fetchall():
        columns[oid].append(name)
    return columns


async def _content(reader: AsyncConnection, table: _Table, columns: Sequence[str]) -> TableContent:
    # COPY sends each row by itself. If no column can be compared, the rows are counted.
    rows = total = 0
    listed = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
    statement = sql.SQL("COPY {} {} TO STDOUT").format(table.identifier, listed)
    try:
        # A subtransaction, because it gives the table's lock back.
        async with reader.transaction(force_rollback=True), reader.cursor().copy(statement) as copy:
            async for row in copy:
                rows += 1
                # The order of the rows is that of the files, which a sum does not show.
                total += int.from_bytes(blake2b(row, digest_size=_HASH_BYTES).digest()) if columns else 0
    except _TRY_AGAIN as error:
        raise _Changed from error
    return TableContent(_printable(f"{table.schema}.{table.name}"), rows, f"{total:x}")


def _printable(text: str) -> str:
    # Control characters in a customer's names must not reach a terminal.
    return "".join(each if each.isprintable() else " " for each in text)
