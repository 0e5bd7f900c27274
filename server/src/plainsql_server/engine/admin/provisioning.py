"""Provisioning: what the service makes on a cell, as the cell's admin role.

Owns the template that customers' databases are copied from, those databases, and their two login roles.
Refuses to run anything of a tenant's: it reads no tenant object, and its search_path is pg_catalog alone.
Every step may be run again, so that what a crash left half done is finished by repeating the whole.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.errors import InternalError, RequestError
from plainsql_server.engine.admin import hardening
from plainsql_server.engine.admin.cell import REWIND_ROLE
from plainsql_server.engine.admin.hardening import functions_like, harden, pin
from plainsql_server.engine.connection.sqlstate import engine_away
from plainsql_server.engine.execution import records
from plainsql_server.engine.execution.records import schema_for
from plainsql_server.engine.pool.address import hosts_of
from plainsql_server.engine.pool.health import PROBE_DATABASE, PROBE_ROLE

# The oldest minor release of each major that a cell may run. 15.19 fixes 30 CVEs over 15.18; PostgreSQL
# releases its majors together, and the others are those of the same day. A major that is not named was never tried.
VERSION_FLOOR = {15: 19, 16: 15, 17: 11, 18: 5}

TEMPLATE = "plainsql_template"

# Of one role on its cell, over all data-plane processes: four of them with pools of the default size, 16, and some for
# ending what these run, which takes a connection of the same role.
ROLE_CONNECTION_LIMIT = 64 + 8

# Large objects can be written in a read-only transaction before PostgreSQL 16, so only owners get them back.
_OWNERS_FUNCTIONS = r"^(lo_(?!import|export).*|lowrite)$"

_CONNECT_TIMEOUT_S = 5
MAINTENANCE_DATABASE = "postgres"
# Advisory locks taken in the maintenance database, where tenants cannot connect.
_TEMPLATE_LOCK = 7_040_320_155_210_118_712
# Work on one database takes a second at the most; whoever waits longer for it had better try again later.
_LOCK_TIMEOUT_MS = 20_000
_REFUSED_IN_CONNINFO = ("user", "dbname", "password", "sslpassword")

# Which rights and functions of ours a customer's database has.
_EDITION = f"{hardening.EDITION} {records.EDITION}"

_OLDER = """
    SELECT datname FROM pg_database
    WHERE datname ~ '^d_[0-9a-f]{24}$' AND datallowconn AND shobj_description(oid, 'pg_database') IS DISTINCT FROM %s
    ORDER BY datname
"""
# What is ours is made by a superuser; a customer's function must never be called by one.
_SCHEMA_OF_OTHERS = """
    SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = %s AND NOT r.rolsuper
"""
_GRANTED_IN = """
    SELECT DISTINCT d.datname
    FROM pg_shdepend s JOIN pg_roles r ON r.oid = s.refobjid JOIN pg_database d ON d.oid = s.dbid
    WHERE s.refclassid = 'pg_authid'::regclass AND r.rolname = %s
"""


@dataclass(frozen=True, slots=True)
class EngineNames:
    """A customer database's names on its cell: random, because every tenant of the cell can list them."""

    database: str
    owner_role: str
    reader_role: str


def new_names() -> EngineNames:
    """Fresh names: 96 random bits each."""
    return EngineNames(*(f"{prefix}_{secrets.token_hex(12)}" for prefix in "dor"))


def check_conninfo(conninfo: str) -> None:
    """Raises RequestError unless the text is a libpq connection string without user, dbname and secrets."""
    try:
        keywords = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise RequestError("invalid_conninfo", f"Not a libpq connection string: {str(error).strip()}.") from error
    refused = [keyword for keyword in _REFUSED_IN_CONNINFO if keywords.get(keyword)]
    if refused:
        raise RequestError(
            "invalid_conninfo",
            f"A cell's connection string must not contain {' or '.join(refused)}.",
            hint="Each database is reached as its own role, by client certificate or by a local socket's user map.",
        )
    try:
        hosts = hosts_of(conninfo)
    except ValueError as error:
        raise RequestError("invalid_conninfo", f"A cell's connection string must not have {error}.") from error
    if len(hosts) > 1 and keywords.get("target_session_attrs") not in ("primary", "read-write"):
        raise RequestError(
            "invalid_conninfo",
            "A cell of several hosts must be asked for the one that leads.",
            hint="Add target_session_attrs=primary.",
        )


async def prepare_cell(conninfo: str, admin_role: str) -> None:
    """Makes a cell fit to hold customers' databases: checks its version, closes it to PUBLIC, makes the template.

    May be run again. CONNECT is revoked from PUBLIC on every database of the cell, because a tenant must
    reach none but their own. Raises RequestError if the version is too old or the role may not do this,
    EngineError if the cell is away.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await _check_version(cell)
        await _check_admin(cell, admin_role)
        await cell.execute("SELECT pg_advisory_lock(%s)", (_TEMPLATE_LOCK,))
        await _close_to_public(cell)
        await _create_role(cell, PROBE_ROLE)
        await cell.execute(_fill("GRANT CONNECT ON DATABASE {} TO {}", PROBE_DATABASE, PROBE_ROLE))
        if await _exists(cell, "SELECT FROM pg_roles WHERE rolname = %s", REWIND_ROLE):
            await cell.execute(_fill("GRANT CONNECT ON DATABASE {} TO {}", MAINTENANCE_DATABASE, REWIND_ROLE))
        await _create_template(cell)
        await _allow_connections(cell, TEMPLATE, True)
        async with admin_connection(conninfo, admin_role, TEMPLATE) as template:
            await harden(template)
        # Nobody can be connected to it now, which is what copying it asks for.
        await _allow_connections(cell, TEMPLATE, False)


# Whether the work is still to be done: asked when nobody else can do it any more.
Ask = Callable[[], Awaitable[bool]]


async def create_database(
    conninfo: str, admin_role: str, names: EngineNames, record_secret: str, is_wanted: Ask
) -> None:
    """Makes a customer's database and its two login roles. May be run again until it succeeds.

    Does nothing if it is no longer wanted. That is asked under a lock that `drop_database` takes, too, so that
    a creation which was held up cannot bring back what was dropped meanwhile. Raises EngineError if the cell is
    away, InternalError if it refuses a step. Cancelling it leaves steps undone, which running it again does.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await cell.execute("SELECT pg_advisory_lock_shared(%s)", (_TEMPLATE_LOCK,))
        await lock_database(cell, names)
        if not await is_wanted():
            return
        await _create_role(cell, names.owner_role)
        await _create_role(cell, names.reader_role)
        await _create_closed_database(cell, names.database)
        await _grant_database(cell, names)
        await _allow_connections(cell, names.database, True)
        async with admin_connection(conninfo, admin_role, names.database) as database:
            await _grant_schemas(database, names)
            for statement in schema_for((names.owner_role, names.reader_role), record_secret):
                await database.execute(statement)
        await _note_edition(cell, names.database)


async def of_older_editions(cell: AsyncConnection) -> list[str]:
    """Customers' databases whose rights or functions of ours are not those that new ones get."""
    return [name for (name,) in await (await cell.execute(_OLDER, (_EDITION,))).fetchall()]


async def renew_rights(conninfo: str, admin_role: str) -> None:
    """Gives databases that were made by an older version the rights and functions of this one's. May be run again.

    Raises InternalError where a customer has a schema in the place of ours.
    """
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        for name in await of_older_editions(cell):
            async with admin_connection(conninfo, admin_role, name) as database:
                if await _exists(database, _SCHEMA_OF_OTHERS, "plainsql"):
                    raise InternalError(f"the schema plainsql of {name} belongs to its customer")
                await harden(database)
                await records.renew(database)
            await pin(cell, "DATABASE", name)
            await _note_edition(cell, name)


async def _note_edition(cell: AsyncConnection, database: str) -> None:
    statement = sql.SQL("COMMENT ON DATABASE {} IS {}")
    await cell.execute(statement.format(sql.Identifier(database), sql.Literal(_EDITION)))


async def drop_database(conninfo: str, admin_role: str, names: EngineNames, is_due: Ask) -> bool:
    """Drops a customer's database, ending its connections, and its roles; False if it is not due. May be run again."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        await lock_database(cell, names)
        if not await is_due():
            return False
        await cell.execute(_fill("DROP DATABASE IF EXISTS {} WITH (FORCE)", names.database))
        for role in (names.owner_role, names.reader_role):
            await _forget_grants(conninfo, admin_role, cell, role)
            await cell.execute(_fill("DROP ROLE IF EXISTS {}", role))
    return True


async def _forget_grants(conninfo: str, admin_role: str, cell: AsyncConnection, role: str) -> None:
    """Takes back what strangers granted to a role in databases of theirs: a role that has rights cannot be dropped.

    It can own nothing there, and taking back runs nothing of theirs.
    """
    for (database,) in await (await cell.execute(_GRANTED_IN, (role,))).fetchall():
        async with admin_connection(conninfo, admin_role, database) as there:
            await there.execute(_fill("DROP OWNED BY {} RESTRICT", role))


async def sizes_bytes(conninfo: str, admin_role: str, databases: list[str]) -> dict[str, int | None]:
    """The size on disk of each of these databases that is there. Raises EngineError if the cell is away."""
    query = "SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = ANY(%s)"
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        return dict(await (await cell.execute(query, (databases,))).fetchall())


async def lock_database(cell: AsyncConnection, names: EngineNames) -> None:
    """Makes this connection the only one that works on a customer's database, as long as it lives."""
    await cell.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (names.database,))


@asynccontextmanager
async def admin_connection(
    conninfo: str, admin_role: str, database: str, program: str = "plainsql-provisioning"
) -> AsyncIterator[AsyncConnection]:
    """A connection as the admin role, closed at the end, which also frees the advisory locks it took."""
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
            await connection.execute("SET search_path = pg_catalog, pg_temp")
            await connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
            yield connection
    except psycopg.OperationalError as error:
        raise engine_away(f"provisioning in {database}: {str(error).strip()}") from error
    except psycopg.Error as error:
        raise InternalError(f"provisioning in {database}: {type(error).__name__}: {error}") from error


async def _check_version(cell: AsyncConnection) -> None:
    major, minor = divmod(cell.info.server_version, 10_000)
    floor = VERSION_FLOOR.get(major)
    if floor is None:
        tried = ", ".join(str(each) for each in VERSION_FLOOR)
        raise RequestError("engine_version_refused", f"The cell runs PostgreSQL {major}; a cell may run {tried}.")
    if minor < floor:
        raise RequestError(
            "engine_version_refused",
            f"The cell runs PostgreSQL {major}.{minor}, which has known holes; {major}.{floor} is the oldest allowed.",
            hint="Install the newest minor release; it needs a restart and no dump.",
        )


async def _check_admin(cell: AsyncConnection, admin_role: str) -> None:
    # Revoking a right on the engine's own functions takes a superuser, and the engine only warns others that
    # nothing was revoked.
    if not await _exists(cell, "SELECT FROM pg_roles WHERE rolname = %s AND rolsuper", admin_role):
        raise RequestError("admin_role_too_weak", f"The role {admin_role!r} is no superuser of the cell.")


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
    """The locale that orders text the same on every machine, so that a copied index stays right.

    From 17 on the engine has its own C.UTF-8. Before, it is the C library's, if this machine has it; plain C
    orders alike, but knows letters of ASCII only.
    """
    if cell.info.server_version >= 170_000:
        return sql.SQL("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LC_COLLATE 'C' LC_CTYPE 'C'")
    find = "SELECT collcollate FROM pg_collation WHERE collprovider = 'c' AND collname IN ('C.utf8', 'C.UTF-8')"
    row = await (await cell.execute(find)).fetchone()
    return sql.SQL("LOCALE_PROVIDER libc LOCALE {}").format(sql.Literal(row[0] if row else "C"))


async def _create_role(cell: AsyncConnection, role: str) -> None:
    if not await _exists(cell, "SELECT FROM pg_roles WHERE rolname = %s", role):
        await cell.execute(_fill("CREATE ROLE {}", role))
    attributes = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD NULL CONNECTION LIMIT {}"
    statement = sql.SQL("ALTER ROLE {} WITH " + attributes)
    await cell.execute(statement.format(sql.Identifier(role), sql.Literal(ROLE_CONNECTION_LIMIT)))
    await pin(cell, "ROLE", role)


async def _create_closed_database(cell: AsyncConnection, name: str) -> None:
    # A new database is open to PUBLIC, so it stays closed to all until that is revoked.
    if not await _exists(cell, "SELECT FROM pg_database WHERE datname = %s", name):
        await cell.execute(_fill("CREATE DATABASE {} TEMPLATE {} ALLOW_CONNECTIONS false", name, TEMPLATE))
    await cell.execute(_fill("REVOKE ALL ON DATABASE {} FROM PUBLIC", name))
    await pin(cell, "DATABASE", name)


async def _grant_database(cell: AsyncConnection, names: EngineNames) -> None:
    owner = "GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {} TO {}"
    await cell.execute(_fill(owner, names.database, names.owner_role))
    await cell.execute(_fill("GRANT CONNECT ON DATABASE {} TO {}", names.database, names.reader_role))


async def _grant_schemas(database: AsyncConnection, names: EngineNames) -> None:
    await database.execute(_fill("ALTER SCHEMA public OWNER TO {}", names.owner_role))
    await database.execute(_fill("GRANT USAGE ON SCHEMA public TO {}", names.reader_role))
    for signature in await functions_like(database, _OWNERS_FUNCTIONS):
        grant = sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}")
        await database.execute(grant.format(signature, sql.Identifier(names.owner_role)))
    default = "ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT "
    for right in ("SELECT ON TABLES", "SELECT ON SEQUENCES", "USAGE ON SCHEMAS"):
        await database.execute(_fill(f"{default}{right} TO {{}}", names.owner_role, names.reader_role))


async def _allow_connections(cell: AsyncConnection, name: str, allowed: bool) -> None:
    statement = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
    await cell.execute(statement.format(sql.Identifier(name), sql.Literal(allowed)))


async def _exists(connection: AsyncConnection, query: str, argument: str) -> bool:
    cursor = await connection.execute(query, (argument,))
    return cursor.rowcount > 0


def _fill(template: str, *identifiers: str) -> sql.Composed:
    return sql.SQL(template).format(*(sql.Identifier(each) for each in identifiers))
