"""Held snapshots of a database, and the changes between two of them.

    earlier = await now_in(pair)
    …
    later = await now_in(other_pair)
    found = await changes(earlier, later)

While a snapshot is held, VACUUM removes no row version that it sees, and so no ctid of such a row is reused. If the
later snapshot is taken while the earlier one is held, a row version that only the earlier one sees at its ctid was
deleted, and one that only the later one sees was inserted. That holds for every table, with or without a key, logged or
unlogged. It needs no configuration of the cell, and leaves no trigger or replication slot behind.

Tenants' tables are read as their owner, because even planning a query may call a tenant's function, to simplify an
index expression. The cell's admin takes the snapshot and reads catalogs, large objects and the service's own tables.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import InternalError, described
from plainsql_server.engine.admin.backups import MOVE
from plainsql_server.engine.admin.schema_fingerprint import FINGERPRINT
from plainsql_server.engine.connection.sqlstate import engine_unavailable

# Both ends of a copy must write and read values in the same format, whatever a tenant stored with ALTER ROLE … SET.
ALIKE = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=3 -c bytea_output=hex"
    " -c lc_monetary=C -c xmlbinary=base64 -c search_path=pg_catalog -c local_preload_libraries="
    " -c statement_timeout=0 -c lock_timeout=20s -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0"
    " -c synchronous_commit=on -c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed"
)
# How many ctids one statement lists: some hundred kilobytes of SQL.
PLACES_AT_ONCE = 10_000
# How many tables one statement reads: with more, planning would take longer than separate statements.
_TABLES_AT_ONCE = 100
_CONNECT_TIMEOUT_S = 5

# A primary key can identify rows if its types are PostgreSQL's own (or enums), whose equality is known. The secret for
# idempotency records (`engine/execution/records.py`) is not copied: every database has its own.
_TABLES = """
    SELECT c.oid, n.nspname::text, c.relname::text, c.relkind = 'm', c.relfilenode, pg_table_size(c.oid),
        ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
              ORDER BY a.attnum),
        (SELECT array_agg(a.attname::text ORDER BY k.place)
         FROM pg_index i
         CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         JOIN pg_type t ON t.oid = a.atttypid
         WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND k.place <= i.indnkeyatts
         HAVING bool_and(t.typnamespace = 'pg_catalog'::regnamespace OR t.typtype = 'e'))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'm') AND c.relispopulated AND c.relpersistence <> 't' AND n.nspname !~ '^pg_'
      AND n.nspname <> 'information_schema' AND (n.nspname, c.relname) <> ('plainsql', 'secrets')
    ORDER BY c.oid
"""
_SEQUENCES = """
    SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'S' AND c.relpersistence <> 't' ORDER BY c.oid
"""
# What becomes visible after a snapshot comes from a transaction that was running or had not begun then. If other
# transactions had locked a row when it was changed, its xmax is a multixact, which was also created after the snapshot.
# Both conditions may select unchanged rows, but never miss a changed one.
_SINCE = "age(xmin) <= age({horizon}::xid)"
_ENDED_SINCE = (
    "xmax <> '0'::xid AND (age(xmax) <= age({horizon}::xid) OR mxid_age(xmax) BETWEEN 0 AND mxid_age({group}::xid))"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table or materialized view, as defined and stored at the time of a snapshot."""

    oid: int
    schema: str
    name: str
    is_view: bool
    storage: int
    size_bytes: int
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def is_ours(self) -> bool:
        """Whether it is one of the service's own tables, which only the admin can write."""
        return self.schema == "plainsql"


@dataclass(frozen=True, slots=True)
class TableChange:
    """The ctids of rows deleted (`gone`) and inserted (`come`) between two snapshots; if `whole`, all rows changed."""

    table: Table
    gone: Sequence[str]
    come: Sequence[str]
    whole: bool = False

    def __bool__(self) -> bool:
        return self.whole or bool(self.gone or self.come)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two connections to a database: one as the cell's admin, one as the database's owner."""

    admin: AsyncConnection
    owner: AsyncConnection

    @property
    def pids(self) -> tuple[int, int]:
        """The process ids of their backends."""
        return self.admin.info.backend_pid, self.owner.info.backend_pid


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A held snapshot of a database. It lasts as long as the transactions of its connections are open."""

    pair: Pair
    snapshot: str
    horizon: str
    group: str
    fingerprint: str
    tables: dict[int, Table]

    def since(self) -> sql.Composed:
        """A condition that selects rows that may have been inserted after this snapshot."""
        return sql.SQL(_SINCE).format(horizon=sql.Literal(self.horizon))

    def ended_since(self) -> sql.Composed:
        """A condition that selects rows that may have been deleted after this snapshot."""
        return sql.SQL(_ENDED_SINCE).format(horizon=sql.Literal(self.horizon), group=sql.Literal(self.group))

    async def end(self) -> None:
        """Releases the snapshot."""
        await self.pair.owner.execute("COMMIT")
        await self.pair.admin.execute("COMMIT")

    async def rows(self, query: sql.SQL | sql.Composed, *arguments: Any) -> list[tuple[Any, ...]]:
        """Runs a query as the admin. It must not read a tenant's table."""
        return await self._rows(self.pair.admin, query, *arguments)

    async def places(self, tables: Sequence[Table], condition: sql.Composable) -> dict[int, list[str]]:
        """The ctids of the rows in each table that meet a condition, by table OID."""
        found: dict[int, list[str]] = {table.oid: [] for table in tables}
        one = sql.SQL("SELECT {}, ctid::text FROM ONLY {} WHERE {}")
        # A tenant may have thousands of tables, and while its requests are held, every round trip counts.
        for readers in ([each for each in tables if each.is_ours], [each for each in tables if not each.is_ours]):
            for some in batches(readers, _TABLES_AT_ONCE):
                parts = [one.format(sql.Literal(each.oid), each.identifier, condition) for each in some]
                for oid, place in await self._rows(self._reader(some[0]), sql.SQL(" UNION ALL ").join(parts)):
                    found[oid].append(place)
        return found

    async def seen(self, table: Table, places: Sequence[str]) -> set[str]:
        """The ctids among `places` at which this snapshot sees a row."""
        query = sql.SQL("SELECT ctid::text FROM ONLY {} WHERE ctid = ANY({})")
        found: set[str] = set()
        for some in batches(places):
            one = query.format(table.identifier, array(some))
            found.update(place for (place,) in await self._rows(self._reader(table), one))
        return found

    async def copy(self, table: Table, query: sql.Composable) -> AsyncIterator[bytes]:
        """The output of a query on a table, in COPY's text format."""
        statement = sql.SQL("COPY ({}) TO STDOUT").format(query)
        reader = self._reader(table)
        async with _passing(reader), reader.cursor().copy(statement) as copy:
            async for block in copy:
                yield bytes(block)

    async def sequences(self) -> list[tuple[str, str, int, bool]]:
        """Every sequence with its last_value and is_called, as of now: sequences are not transactional."""
        named = await self.rows(sql.SQL(_SEQUENCES))
        one = sql.SQL("SELECT {}, {}, last_value, is_called FROM {}")
        parts = [one.format(sql.Literal(s), sql.Literal(n), sql.Identifier(s, n)) for s, n in named]
        found: list[tuple[str, str, int, bool]] = []
        for some in batches(parts, 200):
            rows = await self._rows(self.pair.owner, sql.SQL(" UNION ALL ").join(some))
            found += [(row[0], row[1], row[2], row[3]) for row in rows]
        return found

    def _reader(self, table: Table) -> AsyncConnection:
        return self.pair.admin if table.is_ours else self.pair.owner

    async def _rows(
        self, reader: AsyncConnection, query: sql.SQL | sql.Composed, *arguments: Any
    ) -> list[tuple[Any, ...]]:
        async with _passing(reader):
            return await (await reader.execute(query, arguments or None)).fetchall()


def _passing(reader: AsyncConnection) -> AbstractAsyncContextManager[Any]:
    # Locks last until the end of the transaction or subtransaction. A subtransaction that is rolled back releases them
    # and keeps the snapshot, so tenants can run DDL between two reads.
    return reader.transaction(force_rollback=True)


@asynccontextmanager
async def connected(conninfo: str, role: str, database: str, program: str = MOVE) -> AsyncIterator[AsyncConnection]:
    """A connection to one end of a copy.

    Raises EngineError if the cell is unavailable, InternalError if a statement fails.
    """
    try:
        connection = await AsyncConnection.connect(
            conninfo, user=role, dbname=database, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S,
            client_encoding="UTF8", application_name=program, options=ALIKE,
        )  # fmt: skip
        async with connection:
            yield connection
    except psycopg.OperationalError as error:
        raise engine_unavailable(f"moving {database}: {described(error)}") from error
    except psycopg.Error as error:
        raise InternalError(f"moving {database}: {described(error)}") from error


async def now_in(pair: Pair) -> Snapshot:
    """Takes a snapshot of the database. It is held until `end` is called or the connections are closed."""
    connection = pair.admin
    for each in (pair.admin, pair.owner):
        await each.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # The multixact horizon is that of the last checkpoint, so every multixact created after this snapshot is beyond it.
    query = """
        SELECT pg_export_snapshot(), pg_snapshot_xmin(pg_current_snapshot())::xid::text,
            (SELECT next_multixact_id::text FROM pg_control_checkpoint())
    """
    snapshot, horizon, group = await (await connection.execute(query)).fetchone() or ("", "", "")
    await pair.owner.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    fingerprint = await fingerprint_of(connection)
    rows = await (await connection.execute(_TABLES)).fetchall()
    tables = {
        oid: Table(oid, schema, name, is_view, storage, size_bytes, tuple(columns), tuple(key or ()))
        for oid, schema, name, is_view, storage, size_bytes, columns, key in rows
    }
    return Snapshot(pair, snapshot, horizon, group, fingerprint, tables)


async def fingerprint_of(connection: AsyncConnection) -> str:
    """The fingerprint of the definitions, as the admin's connection sees them."""
    (fingerprint,) = await (await connection.execute(FINGERPRINT)).fetchone() or ("",)
    return str(fingerprint)


async def changes(earlier: Snapshot, later: Snapshot) -> list[TableChange]:
    """The changes between two snapshots with the same definitions, for each table that has any."""
    tables = [table for table in later.tables.values() if earlier.tables[table.oid].storage == table.storage]
    # One pass over every table on each of the two connections, in parallel.
    ended, begun = await asyncio.gather(
        earlier.places(tables, earlier.ended_since()), later.places(tables, earlier.since())
    )
    found: list[TableChange] = []
    for table in later.tables.values():
        if table.oid not in ended:
            # Truncated or rewritten: the ctids cannot be compared.
            found.append(TableChange(table, (), (), whole=True))
        elif ended[table.oid] or begun[table.oid]:
            found.append(await _change(earlier, later, table, ended[table.oid], begun[table.oid]))
    return [each for each in found if each]


async def _change(
    earlier: Snapshot, later: Snapshot, table: Table, ended: Sequence[str], begun: Sequence[str]
) -> TableChange:
    """Reduces the candidates to the rows that were really deleted and inserted."""
    remaining, already = await asyncio.gather(later.seen(table, ended), earlier.seen(table, begun))
    gone = [place for place in ended if place not in remaining]
    return TableChange(table, gone, [place for place in begun if place not in already])


def batches(items: Sequence[Any], size: int = PLACES_AT_ONCE) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def array(places: Sequence[str]) -> sql.Composed:
    """The ctids as an SQL literal of type tid[]."""
    return sql.SQL("{}::tid[]").format(sql.Literal("{" + ",".join(f'"{place}"' for place in places) + "}"))
