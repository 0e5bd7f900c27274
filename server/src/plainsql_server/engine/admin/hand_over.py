"""Gives everything in a copied database to the roles of the copy: ownership, privileges, policies, default privileges.

It changes the catalogs themselves, in one transaction. ALTER … OWNER and REASSIGN OWNED would lock every object in the
lock table that all tenants of the cell share, would fire event triggers, and leave privileges and policies to be
written again. PostgreSQL itself lists which columns of its catalogs refer to roles. No statement here reads a tenant's
rows or calls a tenant's function: all names are those of pg_catalog.
"""

from collections.abc import Iterator

from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import InternalError
from plainsql_server.engine.admin.provisioning import EngineNames, backup_role_of, comment, create_backup_role, run
from plainsql_server.engine.execution import records

# Columns with the oid of a role, or an array of them, in the catalogs of this database.
_ROLE_COLUMNS = """
    SELECT k.fktable::regclass::text, k.fkcols[1], k.is_array
    FROM pg_get_catalog_foreign_keys() k JOIN pg_class c ON c.oid = k.fktable
    WHERE k.pktable = 'pg_authid'::regclass AND NOT c.relisshared
"""
_PRIVILEGE_COLUMNS = """
    SELECT a.attrelid::regclass::text, a.attname, false FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE a.atttypid = 'aclitem[]'::regtype AND c.relkind = 'r' AND NOT c.relisshared AND NOT a.attisdropped
      AND c.relnamespace = 'pg_catalog'::regnamespace
"""
_DEPENDENT = """
    SELECT DISTINCT s.classid::regclass::text FROM pg_shdepend s JOIN pg_authid r ON r.oid = s.refobjid
    WHERE s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND s.refclassid = 'pg_authid'::regclass AND r.rolname = ANY(%s)
"""
_OIDS = "SELECT rolname, oid::bigint FROM pg_authid WHERE rolname = ANY(%s)"
_REPLACE = "UPDATE {table} SET {column} = {new} WHERE {column} = {old}"
_REPLACE_IN_ARRAY = """
    UPDATE {table} SET {column} = array_replace({column}, {old}::oid, {new}::oid) WHERE {old}::oid = ANY({column})
"""
# The names are random and appear nowhere else, so text can be replaced.
_REPLACE_IN_PRIVILEGES = """
    UPDATE {table} SET {column} = replace({column}::text, {old}, {new})::aclitem[]
    WHERE {column} IS NOT NULL AND strpos({column}::text, {old}) > 0
"""
_OWN_SCHEMA = """
    SELECT r.rolsuper FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'plainsql'
"""
_DEPEND_ON = """
    UPDATE pg_shdepend SET refobjid = {new}
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND refclassid = 'pg_authid'::regclass AND refobjid = {old}
"""

# Columns of roles and columns of privileges, each a table, its column and whether that is an array.
_Columns = tuple[list[tuple[sql.SQL, sql.Identifier, bool]], list[tuple[sql.SQL, sql.Identifier, bool]]]


async def hand_over(
    copy: AsyncConnection, original: EngineNames, names: EngineNames, record_secret: str, edition: str
) -> None:
    """Makes the copy a database of its own: its roles own it, and it has its own secret and no records of requests.

    The copy's COMMENT says that this is done, and its version of privileges and functions. Raises InternalError if the
    schema `plainsql` belongs to the customer, or if something of the original's roles is in a catalog of another kind.
    """
    pairs = {original.owner_role: names.owner_role, original.reader_role: names.reader_role}
    old_backup_role = backup_role_of(original.owner_role)
    if (await copy.execute(_DEPENDENT, ([old_backup_role],))).rowcount:
        await create_backup_role(copy, names.owner_role)
        pairs[old_backup_role] = backup_role_of(names.owner_role)
    roles = await _columns(copy, _ROLE_COLUMNS), await _columns(copy, _PRIVILEGE_COLUMNS)
    await _check_covered(copy, list(pairs), roles)
    oids: dict[str, int] = dict(await (await copy.execute(_OIDS, ([*pairs, *pairs.values()],))).fetchall())
    async with copy.transaction():
        for old, new in pairs.items():
            await run(copy, list(_replacing(roles, (old, oids[old]), (new, oids[new]))))
        await _renew_records(copy, names, record_secret)
        await copy.execute(comment(names.database, edition))


async def _check_covered(copy: AsyncConnection, roles: list[str], columns: _Columns) -> None:
    """Raises InternalError if a role has something in a catalog that isn't among those to change."""
    covered = {table.as_string() for tables in columns for table, _, _ in tables}
    # Dependencies of large objects name the table of their pages, but roles are in the one beside it.
    covered |= {"pg_largeobject"} if "pg_largeobject_metadata" in covered else set()
    found = {table for (table,) in await (await copy.execute(_DEPENDENT, (roles,))).fetchall()}
    if not found <= covered:
        raise InternalError(f"no way is known to hand over what is in {sorted(found - covered)}")


async def _columns(copy: AsyncConnection, query: str) -> list[tuple[sql.SQL, sql.Identifier, bool]]:
    """Columns of catalogs, and whether they are arrays. Their names are PostgreSQL's own."""
    rows = await (await copy.execute(query.encode())).fetchall()
    return [(sql.SQL(table), sql.Identifier(column), is_array) for table, column, is_array in rows]


def _replacing(columns: _Columns, old: tuple[str, int], new: tuple[str, int]) -> Iterator[sql.Composed]:
    """Statements that put one role in the place of another, given the name and the oid of each."""
    of_roles, of_privileges = columns
    (old_name, old_oid), (new_name, new_oid) = (tuple(map(sql.Literal, role)) for role in (old, new))
    for table, column, is_array in of_roles:
        template = _REPLACE_IN_ARRAY if is_array else _REPLACE
        yield sql.SQL(template).format(table=table, column=column, old=old_oid, new=new_oid)
    for table, column, _ in of_privileges:
        yield sql.SQL(_REPLACE_IN_PRIVILEGES).format(table=table, column=column, old=old_name, new=new_name)
    yield sql.SQL(_DEPEND_ON).format(old=old_oid, new=new_oid)


async def _renew_records(copy: AsyncConnection, names: EngineNames, record_secret: str) -> None:
    """Gives the copy its own secret, and removes the records: what they tell was done in another database."""
    found = await (await copy.execute(_OWN_SCHEMA)).fetchone()
    if found is None:
        return
    if not found[0]:
        raise InternalError(f"the schema plainsql of {names.database} belongs to its customer")
    for table in ("requests", "responses", "secrets"):
        if (await copy.execute("SELECT WHERE to_regclass(%s) IS NOT NULL", (f"plainsql.{table}",))).rowcount:
            await copy.execute(sql.SQL("TRUNCATE plainsql.{}").format(sql.Identifier(table)))
    await run(copy, records.access_for((names.owner_role, names.reader_role), record_secret))
