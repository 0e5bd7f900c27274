"""Applies the changes between two snapshots of a database to a copy of it: deletes removed rows, inserts new ones.

Tenants' tables are written as the copy's owner, because that may run the tenant's code (in indexes, defaults and
checks). The service's own tables are written as the cell's admin. No one else uses the copy meanwhile. Triggers and
foreign keys are disabled: their effects are already among the changes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import InternalError
from plainsql_server.engine.admin.large_objects import copy_large_objects
from plainsql_server.engine.admin.snapshot import Snapshot, TableChange, array, batches, changes

# A whole row as text, independent of casts that the tenant created.
_ROW = "pg_catalog.textin(pg_catalog.record_out(x.*))"
_DELETE_BY_TEXT = f"""
    DELETE FROM ONLY {{table}} WHERE ctid = ANY (ARRAY(
        SELECT a.place FROM (
            SELECT x.ctid AS place, {_ROW} AS r, row_number() OVER (PARTITION BY {_ROW}) AS n
            FROM ONLY {{table}} x WHERE {_ROW} IN (SELECT r FROM pg_temp.gone)) a
        JOIN (SELECT r, count(*) AS n FROM pg_temp.gone GROUP BY r) g ON g.r = a.r AND a.n <= g.n))
"""
_ALWAYS_TRIGGERS = """
    SELECT n.nspname::text, c.relname::text, 'TRIGGER', t.tgname::text, t.tgenabled::text
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R') AND c.relpersistence <> 't'
    UNION ALL
    SELECT n.nspname::text, c.relname::text, 'RULE', r.rulename::text, r.ev_enabled::text
    FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE r.ev_enabled IN ('A', 'R') AND c.relpersistence <> 't'
"""
_MISSING_PRIVILEGES = """
    SELECT EXISTS (SELECT FROM pg_class WHERE relacl IS NOT NULL AND CASE relkind
        WHEN 'S' THEN NOT has_sequence_privilege(relowner, oid, 'UPDATE')
        ELSE relkind IN ('r', 'p', 'm') AND NOT (has_table_privilege(relowner, oid, 'SELECT')
            AND has_table_privilege(relowner, oid, 'INSERT') AND has_table_privilege(relowner, oid, 'DELETE')) END)
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """Connections to the copy, as its owner and as its cell's admin.

    `role_names` maps the original's other roles (its reader) to their names in the copy.
    """

    owner: AsyncConnection
    admin: AsyncConnection
    role_names: dict[str, str]


async def follow(earlier: Snapshot, later: Snapshot, copy: Copy) -> int:
    """Brings a copy from the earlier snapshot to the later one. Returns the number of rows deleted and inserted.

    Both snapshots must have the same definitions. Raises InternalError if the copy did not match the earlier snapshot.
    """
    found = await changes(earlier, later)
    async with copy.owner.transaction(), copy.admin.transaction():
        # Delete everything first, so that an inserted row finds no old row with the same key.
        for each in found:
            if not each.table.is_view:
                await _delete(earlier, each, copy)
        for each in found:
            if not each.table.is_view:
                await _insert(later, each, copy)
        for each in found:
            if each.table.is_view:
                await copy.owner.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}").format(each.table.identifier))
        await copy_large_objects(earlier, later, copy.owner, copy.role_names)
    return sum(len(each.gone) + len(each.come) for each in found)


async def set_triggers_enabled(admin: AsyncConnection, role: str, database: str, *, enabled: bool) -> None:
    """Enables or disables ordinary triggers, rules and foreign keys for the copy's owner, for its new connections."""
    change = "RESET session_replication_role" if enabled else "SET session_replication_role = replica"
    statement = sql.SQL(f"ALTER ROLE {{}} IN DATABASE {{}} {change}")
    await admin.execute(statement.format(sql.Identifier(role), sql.Identifier(database)))


async def set_always_triggers_enabled(snapshot: Snapshot, copy: Copy, *, enabled: bool) -> None:
    """Disables the copy's ALWAYS and REPLICA triggers and rules, or enables them as in the original."""
    for schema, table, kind, name, fires in await snapshot.rows(sql.SQL(_ALWAYS_TRIGGERS)):
        state = {"A": "ENABLE ALWAYS", "R": "ENABLE REPLICA"}[fires] if enabled else "DISABLE"
        statement = sql.SQL(f"ALTER TABLE ONLY {{}} {state} {kind} {{}}")
        await copy.owner.execute(statement.format(sql.Identifier(schema, table), sql.Identifier(name)))


async def lacks_privileges(snapshot: Snapshot) -> bool:
    """Whether the owner has revoked privileges from itself that are needed to fill its tables."""
    ((found,),) = await snapshot.rows(sql.SQL(_MISSING_PRIVILEGES))
    return bool(found)


async def copy_own(snapshot: Snapshot, copy: Copy) -> None:
    """Copies the service's own tables, which a dump as the owner does not contain."""
    for table in snapshot.tables.values():
        if table.is_ours:
            await _insert(snapshot, TableChange(table, (), (), whole=True), copy)


async def set_sequences(later: Snapshot, copy: Copy) -> None:
    """Sets every sequence of the copy to the original's value. The original must not be in use meanwhile."""
    for schema, name, value, is_called in await later.sequences():
        statement = sql.SQL("SELECT setval({}::regclass, {}, {})")
        quoted = sql.Literal(sql.Identifier(schema, name).as_string(copy.owner))
        await copy.owner.execute(statement.format(quoted, sql.Literal(value), sql.Literal(is_called)))


async def _delete(earlier: Snapshot, each: TableChange, copy: Copy) -> None:
    writer = _writer(each, copy)
    if each.whole:
        await writer.execute(sql.SQL("DELETE FROM ONLY {}").format(each.table.identifier))
        return
    if not each.gone:
        return
    key = sql.SQL(", ").join(sql.Identifier("x", column) for column in each.table.key)
    chosen = key if each.table.key else sql.SQL(f"{_ROW} AS r")
    like = sql.SQL("CREATE TEMP TABLE gone ON COMMIT DROP AS SELECT {} FROM ONLY {} x WITH NO DATA")
    await writer.execute(like.format(chosen, each.table.identifier))
    query = sql.SQL("SELECT {} FROM ONLY {} x WHERE x.ctid = ANY({})")
    for some in batches(each.gone):
        rows = earlier.copy(each.table, query.format(chosen, each.table.identifier, array(some)))
        await _write(writer, sql.SQL("COPY pg_temp.gone FROM STDIN"), rows)
    await writer.execute("ANALYZE pg_temp.gone")
    deleted = await writer.execute(_delete_statement(each))
    if deleted.rowcount != len(each.gone):
        raise InternalError(
            f"the copy of table {each.table.oid} lacks {len(each.gone) - deleted.rowcount} rows deleted in the original"
        )
    await writer.execute("DROP TABLE pg_temp.gone")


def _delete_statement(each: TableChange) -> sql.Composed:
    if not each.table.key:
        return sql.SQL(_DELETE_BY_TEXT).format(table=each.table.identifier)
    equal = [
        sql.SQL("{} = {}").format(sql.Identifier("x", column), sql.Identifier("gone", column))
        for column in each.table.key
    ]
    statement = sql.SQL("DELETE FROM ONLY {} x USING pg_temp.gone AS gone WHERE {}")
    return statement.format(each.table.identifier, sql.SQL(" AND ").join(equal))


async def _insert(later: Snapshot, each: TableChange, copy: Copy) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, each.table.columns))
    # A table may have rows but no columns, or only generated ones.
    named = sql.SQL("({})" if each.table.columns else "").format(columns)
    into = sql.SQL("COPY {} {} FROM STDIN").format(each.table.identifier, named)
    everything = sql.SQL("SELECT {} FROM ONLY {}").format(columns, each.table.identifier)
    if each.whole:
        await _write(_writer(each, copy), into, later.copy(each.table, everything))
    for some in batches(each.come):
        query = sql.SQL("{} WHERE ctid = ANY({})").format(everything, array(some))
        await _write(_writer(each, copy), into, later.copy(each.table, query))


def _writer(each: TableChange, copy: Copy) -> AsyncConnection:
    return copy.admin if each.table.is_ours else copy.owner


async def _write(writer: AsyncConnection, statement: sql.SQL | sql.Composed, blocks: AsyncIterator[bytes]) -> None:
    async with writer.cursor().copy(statement) as copy:
        async for block in blocks:
            await copy.write(block)
