"""Creates and drops what the service needs on a cell, as the cell's admin role.

That is the template database, tenants' databases copied from it, and the login roles of each: its owner and its
reader, and one for backups as soon as there is one. Provisioning never runs a tenant's code: it reads no tenant's
objects, and its search_path is pg_catalog and pg_temp. Every step is idempotent, so what a crash left half done is
completed by running the whole again. A creation sends its statements together where it can: each commit waits for the
disk, and each exchange takes processor time on both sides.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.errors import EngineError, InternalError, RequestError, described
from plainsql_server.engine.admin import hardening, tenants_group
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE, REWIND_ROLE, TEMPLATE
from plainsql_server.engine.admin.hardening import functions_like, harden, pins
from plainsql_server.engine.connection.sqlstate import engine_unavailable
from plainsql_server.engine.execution import records
from plainsql_server.engine.pool.address import hosts_of
from plainsql_server.engine.pool.health import PROBE_DATABASE, PROBE_ROLE

# The oldest minor release of each major version that a cell may run. 15.19 fixes 30 CVEs over 15.18. PostgreSQL
# releases all majors on the same day; the others are the releases of that day. A major not listed here is untested.
VERSION_FLOOR = {15: 19, 16: 15, 17: 11, 18: 5}

# The connection limit of one role on its cell, over all data-plane processes: four processes with pools of the default
# size, 16, and some to terminate backends, which takes a connection of the same role.
ROLE_CONNECTION_LIMIT = 64 + 8

# Before PostgreSQL 16, large objects can be written in read-only transactions, so only owners get these functions back.
_OWNERS_FUNCTIONS = r"^(lo_(?!import|export).*|lowrite)$"

_CONNECT_TIMEOUT_S = 5
# Advisory locks taken in the maintenance database, where tenants cannot connect.
_TEMPLATE_LOCK = 7_040_320_155_210_118_712
# An advisory lock taken in a tenant's database.
_BACKUP_ROLE_LOCK = 7_040_320_155_210_118_714
# Administrative work on one database takes a second at most. A caller that waits longer should fail and retry later.
LOCK_TIMEOUT_MS = 20_000
_REFUSED_IN_CONNINFO = ("user", "dbname", "password", "sslpassword")

# The version of privileges and service functions that a new database gets.
_EDITION = f"{hardening.EDITION} {records.EDITION}"
# The COMMENT of a branch that still has what is its parent's (`branching.py`). No one may complete it.
HALF_COPY = "half a copy"
# The version of what a new database is copied with. It is stored as the template's COMMENT.
_TEMPLATE_EDITION = f"{hardening.EDITION} {records.SCHEMA_EDITION}"

_OLDER = """
    SELECT datname FROM pg_database
    WHERE datname ~ '^d_[0-9a-f]{24}$' AND datallowconn
      AND coalesce(shobj_description(oid, 'pg_database'), '') <> ALL(%s)
    ORDER BY datname
"""
# The service's schema belongs to a superuser. A superuser must never call a tenant's function.
_SCHEMA_OF_OTHERS = """
    SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = %s AND NOT r.rolsuper
"""
_EXISTING = """
    SELECT EXISTS (SELECT FROM pg_database WHERE datname = %(database)s),
           ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%(roles)s)),
           (SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %(template)s)
"""
_GRANTED_IN = """
    SELECT DISTINCT d.datname
    FROM pg_shdepend s JOIN pg_roles r ON r.oid = s.refobjid JOIN pg_database d ON d.oid = s.dbid
    WHERE s.refclassid = 'pg_authid'::regclass AND r.rolname = %s
"""
_IS_THERE = "SELECT FROM pg_database WHERE datname = %s"
# A copy that is not marked yet is as CREATE DATABASE made it. The transaction that marks it revokes from PUBLIC. So a
# database that was ever a tenant's has privileges of its own, even if it is closed and has no comment.
_IS_HALF_COPY = """
    SELECT FROM pg_database WHERE datname = %s AND (shobj_description(oid, 'pg_database') = %s
      OR NOT datallowconn AND datacl IS NULL AND shobj_description(oid, 'pg_database') IS NULL)
"""


@dataclass(frozen=True, slots=True)
class EngineNames:
    """The names of a tenant's database and roles on its cell. They are random, because every tenant can list them."""

    database: str
    owner_role: str
    reader_role: str


def new_names() -> EngineNames:
    """New names, with 96 random bits each."""
    return EngineNames(*(f"{prefix}_{secrets.token_hex(12)}" for prefix in "dor"))


def backup_role_of(owner_role: str) -> str:
    """The role that a backup logs in as. It follows from the owner's name, so a crash leaves no unknown role behind."""
    return f"b{owner_role.removeprefix('o')}"


def check_conninfo(conninfo: str) -> None:
    """Raises RequestError unless the text is a libpq connection string without user, dbname and secrets.

    If it names several hosts, it must set target_session_attrs to select the primary.
    """
    try:
        keywords = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise RequestError("invalid_conninfo", f"Not a libpq connection string: {str(error).strip()}.") from error
    refused = [keyword for keyword in _REFUSED_IN_CONNINFO if keywords.get(keyword)]
    if refused:
        raise RequestError(
            "invalid_conninfo",
            f"A cell's connection string must not contain {' or '.join(refused)}.",
            hint="The service logs in to each database as that database's own role, with a client certificate or, on a"
            " local socket, with a user name map.",
        )
    try:
        hosts = hosts_of(conninfo)
    except ValueError as error:
        raise RequestError("invalid_conninfo", f"The cell's connection string has {error}.") from error
    if len(hosts) > 1 and keywords.get("target_session_attrs") not in ("primary", "read-write"):
        raise RequestError(
            "invalid_conninfo",
            "A connection string with several hosts must select the primary.",
            hint="Add target_session_attrs=primary.",
        )


async def prepare_cell(conninfo: str, admin_role: str) -> None:
    """Prepares a cell for tenants' databases: checks its version, closes it to PUBLIC, creates the template.

    Can be run again. CONNECT is revoked from PUBLIC on every database of the cell, because a tenant must be able to
    connect only to its own. Raises RequestError if the version is too old or the role is not a superuser, EngineError
    if the cell is unavailable.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await _check_version(cell)
        await _check_admin(cell, admin_role)
        await cell.execute("SELECT pg_advisory_lock(%s)", (_TEMPLATE_LOCK,))
        await _close_to_public(cell)
        # In a cluster that was once PostgreSQL 14, PUBLIC may create objects here, and the probe role can connect.
        await cell.execute(hardening.CLOSED_SCHEMA)
        is_there = await _exists(cell, "SELECT FROM pg_roles WHERE rolname = %s", PROBE_ROLE)
        await run(cell, _role(PROBE_ROLE, is_there=is_there))
        await tenants_group.create(cell)
        await tenants_group.add_missing(cell)
        await cell.execute(_fill("GRANT CONNECT ON DATABASE {} TO {}", PROBE_DATABASE, PROBE_ROLE))
        if await _exists(cell, "SELECT FROM pg_roles WHERE rolname = %s", REWIND_ROLE):
            await cell.execute(_fill("GRANT CONNECT ON DATABASE {} TO {}", MAINTENANCE_DATABASE, REWIND_ROLE))
        await _create_template(cell)
        await cell.execute(_allow_connections(TEMPLATE, True))
        async with admin_connection(conninfo, admin_role, TEMPLATE) as template:
            await _complete(template)
            await template.execute(comment(TEMPLATE, _TEMPLATE_EDITION))
        # CREATE DATABASE can copy a template only while no one is connected to it.
        await cell.execute(_allow_connections(TEMPLATE, False))


# Returns whether the work is still to be done. Called under the database's lock, when no one else can do it.
Ask = Callable[[], Awaitable[bool]]


async def create_database(
    conninfo: str, admin_role: str, names: EngineNames, record_secret: str, is_wanted: Ask
) -> None:
    """Creates a tenant's database and its two login roles. Can be run again until it succeeds.

    Does nothing if the database is no longer wanted. `is_wanted` is called under a lock that `drop_database` also
    takes, so a delayed creation cannot bring back a database that was dropped meanwhile. Raises EngineError if the cell
    is unavailable, InternalError if a statement fails. After a cancellation, run it again to complete the rest.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await cell.execute("SELECT pg_advisory_lock_shared(%s)", (_TEMPLATE_LOCK,))
        await lock_database(cell, names)
        if not await is_wanted():
            return
        is_complete = await _create_parts(cell, names)
        large_objects = await functions_like(cell, _OWNERS_FUNCTIONS)
        async with admin_connection(conninfo, admin_role, names.database) as database:
            if not is_complete:
                await _complete(database)
            access = records.access_for((names.owner_role, names.reader_role), record_secret)
            await run(database, [*_grants(names, large_objects), *access, comment(names.database, _EDITION)])


async def _create_parts(cell: AsyncConnection, names: EngineNames) -> bool:
    """Creates the roles and the database. Returns whether it was copied with this version's privileges and functions.

    What an earlier attempt has copied is not known to be of this version.
    """
    has_database, edition = await create_roles(cell, names)
    if not has_database:
        # A new database allows CONNECT to PUBLIC, so it disallows all connections until that is revoked.
        await cell.execute(_fill("CREATE DATABASE {} TEMPLATE {} ALLOW_CONNECTIONS false", names.database, TEMPLATE))
    await open_to_tenants(cell, names)
    return edition == _TEMPLATE_EDITION and not has_database


async def create_roles(cell: AsyncConnection, names: EngineNames) -> tuple[bool, str | None]:
    """Creates the two login roles. Returns whether the database exists, and the template's version."""
    roles = [names.owner_role, names.reader_role]
    arguments = {"database": names.database, "roles": roles, "template": TEMPLATE}
    found = await (await cell.execute(_EXISTING, arguments)).fetchone()
    assert found is not None
    has_database, existing_roles, edition = found
    made = [statement for role in roles for statement in _role(role, is_there=role in existing_roles)]
    # A cell that an older version prepared may not have the group yet.
    await tenants_group.create(cell)
    await run(cell, [*made, tenants_group.add(cell, roles)])
    return bool(has_database), edition


async def open_to_tenants(cell: AsyncConnection, names: EngineNames) -> None:
    """Lets the two roles connect to the database, and no other tenant's."""
    await run(cell, _opening(names))


async def _complete(database: AsyncConnection) -> None:
    """Gives a database this version's privileges and functions that do not depend on whose it is."""
    await database.execute(hardening.CLOSED_SCHEMA)
    await harden(database)
    await records.create_schema(database)


async def of_older_editions(cell: AsyncConnection) -> list[str]:
    """Tenants' databases whose privileges or service functions differ from those of new databases."""
    return [name for (name,) in await (await cell.execute(_OLDER, ([_EDITION, HALF_COPY],))).fetchall()]


async def renew_rights(conninfo: str, admin_role: str) -> None:
    """Updates databases created by an older version to this version's privileges and functions. Can be run again.

    Raises InternalError if the schema `plainsql` of a database belongs to the tenant.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        for name in await of_older_editions(cell):
            async with _locked(cell, name):
                # It may have been dropped or completed before.
                if name in await of_older_editions(cell):
                    await _renew(conninfo, admin_role, cell, name)


async def _renew(conninfo: str, admin_role: str, cell: AsyncConnection, name: str) -> None:
    async with admin_connection(conninfo, admin_role, name) as database:
        if await _exists(database, _SCHEMA_OF_OTHERS, "plainsql"):
            raise InternalError(f"the schema plainsql of {name} belongs to its customer")
        await harden(database)
        await records.renew(database)
    await run(cell, [*pins("DATABASE", name), comment(name, _EDITION)])


@asynccontextmanager
async def _locked(cell: AsyncConnection, database: str) -> AsyncIterator[None]:
    """Holds a database's lock during the block: a connection that keeps all of them fills the cell's lock table."""
    await cell.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (database,))
    try:
        yield
    finally:
        await cell.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (database,))


async def create_backup_role(database: AsyncConnection, owner_role: str) -> None:
    """Creates the role that backups of this database log in as, if it is missing.

    It is a member of the owner role, so it can do what the owner can and nothing else. But the owner is not a member
    of it, so a tenant can neither terminate nor cancel a backup. Through the owner, it is in the tenants' group.
    """
    role = backup_role_of(owner_role)
    async with database.transaction():
        # Two backups may both be the first. Tenants can't take advisory locks.
        await database.execute("SELECT pg_advisory_xact_lock(%s)", (_BACKUP_ROLE_LOCK,))
        if not await _exists(database, "SELECT FROM pg_roles WHERE rolname = %s", role):
            await run(
                database, [*_role(role, is_there=False, inherits=True), _fill("GRANT {} TO {}", owner_role, role)]
            )


def comment(database: str, edition: str) -> sql.Composed:
    """The statement that stores a database's version of privileges and functions, or `HALF_COPY`."""
    return sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(database), sql.Literal(edition))


async def drop_database(conninfo: str, admin_role: str, names: EngineNames, is_due: Ask) -> bool:
    """Terminates the connections of a tenant's database, then drops it and its roles. Can be run again.

    Returns False, and does nothing, if the drop is not due.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await lock_database(cell, names)
        if not await is_due():
            return False
        await cell.execute(_fill("DROP DATABASE IF EXISTS {} WITH (FORCE)", names.database))
        for role in (backup_role_of(names.owner_role), names.owner_role, names.reader_role):
            await _forget_grants(conninfo, admin_role, cell, role)
            await cell.execute(_fill("DROP ROLE IF EXISTS {}", role))
    return True


async def _forget_grants(conninfo: str, admin_role: str, cell: AsyncConnection, role: str) -> None:
    """Revokes what other tenants granted to a role in their databases: a role with privileges cannot be dropped.

    The role can own nothing there, and revoking runs no code of those tenants. In what a branch left half copied, it
    may own everything, so that is dropped.
    """
    for (database,) in await (await cell.execute(_GRANTED_IN, (role,))).fetchall():
        if (await cell.execute(_IS_HALF_COPY, (database, HALF_COPY))).rowcount:
            await _drop_half_copy(cell, database)
            continue
        try:
            async with admin_connection(conninfo, admin_role, database) as there:
                await there.execute(_fill("DROP OWNED BY {} RESTRICT", role))
        except EngineError:
            # Another process may have dropped it since it was listed.
            if (await cell.execute(_IS_THERE, (database,))).rowcount:
                raise


async def _drop_half_copy(cell: AsyncConnection, database: str) -> None:
    """Drops what is left of a branch whose creation died. Raises EngineError if it is still being made."""
    if not await try_lock(cell, database):
        raise EngineError("database_busy", "A copy of the database is being made.", retryable=True)
    # It may have been completed before it was locked.
    if (await cell.execute(_IS_HALF_COPY, (database, HALF_COPY))).rowcount:
        await cell.execute(_fill("DROP DATABASE {} WITH (FORCE)", database))


async def sizes_bytes(conninfo: str, admin_role: str, databases: list[str]) -> dict[str, int | None]:
    """The size on disk of each of these databases that exists. Raises EngineError if the cell is unavailable."""
    query = "SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = ANY(%s)"
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        return dict(await (await cell.execute(query, (databases,))).fetchall())


async def lock_database(cell: AsyncConnection, names: EngineNames) -> None:
    """Takes the lock for administrative work on a tenant's database. It lasts as long as the connection."""
    await cell.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (names.database,))


async def try_lock(cell: AsyncConnection, name: str) -> bool:
    """Takes the lock of a database, or of anything else with a name, if it is free. Returns whether it did."""
    row = await (await cell.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (name,))).fetchone()
    return row is not None and bool(row[0])


@asynccontextmanager
async def admin_connection(
    conninfo: str, admin_role: str, database: str, program: str = "plainsql-provisioning"
) -> AsyncIterator[AsyncConnection]:
    """A connection as the admin role. Closing it at the end of the block also releases its advisory locks.

    Raises EngineError if the server is unavailable, InternalError if a statement in the block fails.
    """
    try:
        connection = await AsyncConnection.connect(
            conninfo,
            user=admin_role,
            dbname=database,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name=program,
        )
        async with connection:
            await connection.execute(f"SET search_path = pg_catalog, pg_temp; SET lock_timeout = {LOCK_TIMEOUT_MS}")
            yield connection
    except psycopg.OperationalError as error:
        raise engine_unavailable(f"provisioning in {database}: {described(error)}") from error
    except psycopg.Error as error:
        raise InternalError(f"provisioning in {database}: {described(error)}") from error


async def _check_version(cell: AsyncConnection) -> None:
    major, minor = divmod(cell.info.server_version, 10_000)
    floor = VERSION_FLOOR.get(major)
    if floor is None:
        tried = ", ".join(str(each) for each in VERSION_FLOOR)
        raise RequestError("engine_version_refused", f"The cell runs PostgreSQL {major}; supported are {tried}.")
    if minor < floor:
        raise RequestError(
            "engine_version_refused",
            f"PostgreSQL {major}.{minor} has known vulnerabilities; {major}.{floor} is the oldest release allowed.",
            hint="Install the latest minor release. That needs a restart, but no dump and restore.",
        )


async def _check_admin(cell: AsyncConnection, admin_role: str) -> None:
    # Revoking privileges on PostgreSQL's own functions takes a superuser. For other roles, PostgreSQL only warns that
    # nothing was revoked.
    if not await _exists(cell, "SELECT FROM pg_roles WHERE rolname = %s AND rolsuper", admin_role):
        raise RequestError("admin_role_too_weak", f"The role {admin_role!r} isn't a superuser on the cell.")


async def _close_to_public(cell: AsyncConnection) -> None:
    open_databases = """
        SELECT datname FROM pg_database
        WHERE datallowconn AND EXISTS (
            SELECT FROM aclexplode(coalesce(datacl, acldefault('d', datdba))) AS entry
            WHERE entry.grantee = 0 AND entry.privilege_type = 'CONNECT')
    """
    cursor = await cell.execute(open_databases)
    for (name,) in await cursor.fetchall():
        await cell.execute(_fill("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC", name))


async def _create_template(cell: AsyncConnection) -> None:
    if not await _exists(cell, "SELECT FROM pg_database WHERE datname = %s", TEMPLATE):
        locale = await _locale_clause(cell)
        create = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' {} IS_TEMPLATE true ALLOW_CONNECTIONS false"
        await cell.execute(sql.SQL(create).format(sql.Identifier(TEMPLATE), locale))
    await cell.execute(_fill("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC", TEMPLATE))


async def _locale_clause(cell: AsyncConnection) -> sql.Composable:
    """The locale for tenants' databases. It sorts text the same on every machine, so a copied index stays valid.

    PostgreSQL 17 and later have a built-in C.UTF-8. Before, it is the C library's, if the cell's machine has it. Plain
    C sorts the same, but treats only ASCII characters as letters.
    """
    if cell.info.server_version >= 170_000:
        return sql.SQL("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LC_COLLATE 'C' LC_CTYPE 'C'")
    find = "SELECT collcollate FROM pg_collation WHERE collprovider = 'c' AND collname IN ('C.utf8', 'C.UTF-8')"
    row = await (await cell.execute(find)).fetchone()
    return sql.SQL("LOCALE_PROVIDER libc LOCALE {}").format(sql.Literal(row[0] if row else "C"))


def _role(role: str, *, is_there: bool, inherits: bool = False) -> list[sql.Composed]:
    attributes = (
        f"LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS {'INHERIT' if inherits else 'NOINHERIT'}"
        " PASSWORD NULL CONNECTION LIMIT {}"
    )
    statement = sql.SQL(f"{'ALTER' if is_there else 'CREATE'} ROLE {{}} WITH {attributes}")
    return [statement.format(sql.Identifier(role), sql.Literal(ROLE_CONNECTION_LIMIT)), *pins("ROLE", role)]


def _opening(names: EngineNames) -> list[sql.Composed]:
    """Statements that let the two roles connect to the database, and no other tenant's."""
    return [
        _fill("REVOKE ALL ON DATABASE {} FROM PUBLIC", names.database),
        *pins("DATABASE", names.database),
        _fill("GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {} TO {}", names.database, names.owner_role),
        _fill("GRANT CONNECT ON DATABASE {} TO {}", names.database, names.reader_role),
        _allow_connections(names.database, True),
    ]


def _grants(names: EngineNames, large_objects: Sequence[sql.SQL]) -> list[sql.Composed]:
    """Statements that give the two roles what is theirs in the database."""
    functions = sql.SQL(", ").join(large_objects)
    default = "ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT "
    return [
        _fill("ALTER SCHEMA public OWNER TO {}", names.owner_role),
        _fill("GRANT USAGE ON SCHEMA public TO {}", names.reader_role),
        sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(functions, sql.Identifier(names.owner_role)),
        *(
            _fill(f"{default}{right} TO {{}}", names.owner_role, names.reader_role)
            for right in ("SELECT ON TABLES", "SELECT ON SEQUENCES", "USAGE ON SCHEMAS")
        ),
    ]


def _allow_connections(name: str, allowed: bool) -> sql.Composed:
    statement = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
    return statement.format(sql.Identifier(name), sql.Literal(allowed))


async def run(connection: AsyncConnection, statements: Sequence[sql.Composed]) -> None:
    """Runs statements in one exchange and one transaction."""
    await connection.execute(sql.SQL(";\n").join(statements))


async def _exists(connection: AsyncConnection, query: str, argument: str) -> bool:
    cursor = await connection.execute(query, (argument,))
    return cursor.rowcount > 0


def _fill(template: str, *identifiers: str) -> sql.Composed:
    return sql.SQL(template).format(*(sql.Identifier(each) for each in identifiers))
