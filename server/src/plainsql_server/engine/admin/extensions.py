"""Which extensions tenants can create, and the guards in each database that enforce it.

The list is a setting of the cell, stored with the maintenance database. Every database of the cell can read it, and
only an administrator can write it, so a change applies at once to all databases. It stays when the template is dropped
and created again. PostgreSQL itself requires that an extension is trusted; its script then runs as a superuser.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from psycopg import AsyncConnection, sql

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE

# Extensions that tenants can create unless the cell has its own list. docs/security.md has the review of each.
EXTENSIONS = (
    "btree_gin", "btree_gist", "citext", "fuzzystrmatch", "hstore", "pg_trgm", "pgcrypto", "unaccent", "uuid-ossp",
    "vector",
)  # fmt: skip

# The oldest versions without known vulnerabilities of extensions that do not come with PostgreSQL. pgvector 0.8.7 fixes
# a buffer overflow in building IVFFlat indexes, 0.8.2 one in building HNSW indexes.
EXTENSION_FLOOR = {"vector": "0.8.7"}

# Functions that tenants must not execute, each with its extension. This one returns the MAC address of the cell's
# machine.
_FORBIDDEN = "('uuid-ossp', 'uuid_generate_v1')"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_SETTING = "plainsql.extensions"
_STORE = sql.Identifier(MAINTENANCE_DATABASE)
# An advisory lock, taken in the maintenance database, where tenants cannot connect.
_LIST_LOCK = 5_518_902_347_716_204_339

_DEFAULT = "'{" + ",".join(EXTENSIONS) + "}'::text[]"
# A tenant can set the same setting for itself. Only what is stored for the maintenance database counts.
_ALLOWED = f"""
    coalesce((
        SELECT string_to_array(substr(entry, {len(_SETTING) + 2}), ',')
        FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) AS entry
        WHERE d.datname = '{MAINTENANCE_DATABASE}' AND s.setrole = 0 AND starts_with(entry, '{_SETTING}=')
    ), {_DEFAULT})
"""
_ALLOWED_STATES = f"""
    SELECT allowed.name, e.default_version, coalesce(bool_or(v.trusted OR NOT v.superuser), false)
    FROM unnest({_ALLOWED}) AS allowed (name)
    LEFT JOIN pg_available_extensions() e ON e.name = allowed.name
    LEFT JOIN pg_available_extension_versions() v ON v.name = e.name AND v.version = e.default_version
    GROUP BY 1, 2 ORDER BY 1
"""
_CREATED = """
    SELECT e.extname::text FROM pg_extension e JOIN pg_roles r ON r.oid = e.extowner WHERE NOT r.rolsuper ORDER BY 1
"""

_OFFERED = f"""
    CREATE SCHEMA IF NOT EXISTS plainsql;
    CREATE OR REPLACE FUNCTION plainsql.offered_extensions() RETURNS SETOF name
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
        SELECT e.name FROM pg_available_extensions() e
        JOIN pg_available_extension_versions() v ON v.name = e.name AND v.version = e.default_version
        WHERE (v.trusted OR NOT v.superuser) AND e.name = ANY ({_ALLOWED})
        GROUP BY e.name ORDER BY e.name
    $$;
    CREATE OR REPLACE FUNCTION plainsql.refuse_extension(refused text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        RAISE insufficient_privilege USING
            MESSAGE = format('the extension "%s" is not offered', refused),
            HINT = format('Available extensions: %s.', coalesce(
                (SELECT string_agg(name, ', ') FROM plainsql.offered_extensions() AS o (name)), 'none'));
    END $$;
"""
# Runs before CREATE EXTENSION, for a better message than PostgreSQL's, which names files and superusers. It knows the
# extension only from the text of the statement; where it does not find it there, PostgreSQL and the guard below decide.
_ADVICE = r"""
    CREATE OR REPLACE FUNCTION plainsql.advise_extensions() RETURNS event_trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        asked text := (regexp_match(current_query(),
            '^\s*create\s+extension\s+(?:if\s+not\s+exists\s+)?("[^"]+"|[[:alpha:]_]\w*)', 'i'))[1];
    BEGIN
        asked := CASE WHEN asked LIKE '"%' THEN trim(BOTH '"' FROM asked) ELSE lower(asked) END;
        IF asked IS NOT NULL
            AND EXISTS (SELECT FROM pg_roles WHERE rolname = current_user AND NOT rolsuper)
            AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = asked)
            AND NOT EXISTS (SELECT FROM plainsql.offered_extensions() AS o (name) WHERE name = asked)
        THEN
            PERFORM plainsql.refuse_extension(asked);
        END IF;
    END $$;
    REVOKE ALL ON FUNCTION plainsql.advise_extensions() FROM PUBLIC;
    DROP EVENT TRIGGER IF EXISTS plainsql_advise_extensions;
    CREATE EVENT TRIGGER plainsql_advise_extensions ON ddl_command_start WHEN TAG IN ('CREATE EXTENSION')
        EXECUTE FUNCTION plainsql.advise_extensions();
    ALTER EVENT TRIGGER plainsql_advise_extensions ENABLE ALWAYS;
"""
# Runs at the end of CREATE EXTENSION and undoes it by failing. CASCADE also creates the extensions that another one
# requires. PostgreSQL does not report these to event triggers, so the guard finds them by their dependencies.
# PostgreSQL does not check that the tenant may create objects in the schema: a trusted script runs as a superuser. The
# guard runs as one, too, because only the owner of a function or table can change privileges on it. The tables that it
# lets the tenant write are those whose rows belong into a dump: without the privilege, the tenant's role could not
# restore them.
_GUARD = f"""
    CREATE OR REPLACE FUNCTION plainsql.check_extensions() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    #variable_conflict error
    DECLARE
        made record;
        forbidden text;
        writable text;
    BEGIN
        FOR made IN
            WITH RECURSIVE concerned (extension) AS (
                SELECT c.objid FROM pg_event_trigger_ddl_commands() c WHERE c.classid = 'pg_extension'::regclass
                UNION
                SELECT d.refobjid FROM concerned JOIN pg_depend d ON d.objid = extension
                WHERE d.classid = 'pg_extension'::regclass AND d.refclassid = 'pg_extension'::regclass
            )
            SELECT e.oid AS id, e.extname AS its_name, n.nspname AS its_schema, e.extconfig AS its_tables,
                   e.extowner::regrole AS its_owner,
                   e.extname IN (SELECT plainsql.offered_extensions()) AS is_offered,
                   has_schema_privilege(e.extowner, n.oid, 'CREATE') AS is_at_home
            FROM concerned JOIN pg_extension e ON e.oid = extension
            JOIN pg_namespace n ON n.oid = e.extnamespace
            JOIN pg_roles r ON r.oid = e.extowner
            WHERE NOT r.rolsuper
        LOOP
            IF tg_tag = 'CREATE EXTENSION' AND NOT made.is_offered THEN
                PERFORM plainsql.refuse_extension(made.its_name);
            ELSIF NOT made.is_at_home THEN
                RAISE insufficient_privilege USING
                    MESSAGE = format('permission denied for schema %I', made.its_schema),
                    HINT = 'Name another schema: CREATE EXTENSION … SCHEMA public.';
            END IF;
            FOR forbidden IN
                SELECT p.oid::regprocedure::text FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
                WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = made.id AND d.deptype = 'e'
                  AND d.classid = 'pg_proc'::regclass AND (made.its_name::text, p.proname::text) IN ({_FORBIDDEN})
            LOOP
                EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || forbidden || ' FROM PUBLIC';
            END LOOP;
            FOR writable IN SELECT t.oid::regclass::text FROM pg_class t WHERE t.oid = ANY (made.its_tables) LOOP
                EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %s TO %s', writable, made.its_owner);
            END LOOP;
        END LOOP;
    END $$;
    REVOKE ALL ON FUNCTION plainsql.check_extensions() FROM PUBLIC;
    DROP EVENT TRIGGER IF EXISTS plainsql_check_extensions;
    CREATE EVENT TRIGGER plainsql_check_extensions ON ddl_command_end
        WHEN TAG IN ('CREATE EXTENSION', 'ALTER EXTENSION')
        EXECUTE FUNCTION plainsql.check_extensions();
    ALTER EVENT TRIGGER plainsql_check_extensions ENABLE ALWAYS;
"""
# PostgreSQL lists every extension whose files are on the machine. Its own views list those that can be created here,
# and those that the database has. Names, columns and privileges of the views stay, so every client keeps working.
_VIEWS = """
    SET LOCAL allow_system_table_mods = on;
    CREATE OR REPLACE VIEW pg_catalog.pg_available_extensions AS
        SELECT e.name, e.default_version, x.extversion AS installed_version, e.comment
        FROM pg_available_extensions() e LEFT JOIN pg_extension x ON x.extname = e.name
        WHERE x.oid IS NOT NULL OR e.name IN (SELECT plainsql.offered_extensions());
    CREATE OR REPLACE VIEW pg_catalog.pg_available_extension_versions AS
        SELECT e.name, e.version, x.extname IS NOT NULL AS installed, e.superuser, e.trusted, e.relocatable, e.schema,
               e.requires, e.comment
        FROM pg_available_extension_versions() e
        LEFT JOIN pg_extension x ON x.extname = e.name AND x.extversion = e.version
        WHERE e.name IN (SELECT extname FROM pg_extension) OR e.name IN (SELECT plainsql.offered_extensions());
"""

# What a database needs for all of this. Can be run again.
GUARDS = _OFFERED + _ADVICE + _GUARD + _VIEWS


@dataclass(frozen=True, slots=True)
class AllowedExtension:
    """An extension on a cell's list. Tenants can create it if it is installed there and trusted."""

    name: str
    version: str | None
    """The version that CREATE EXTENSION creates; None if the extension is not installed."""
    is_trusted: bool

    @property
    def is_offered(self) -> bool:
        return self.version is not None and self.is_trusted

    @property
    def floor(self) -> str | None:
        """The oldest version without known vulnerabilities, if the installed one is older."""
        floor = EXTENSION_FLOOR.get(self.name)
        is_older = floor is not None and self.version is not None and _numbers(self.version) < _numbers(floor)
        return floor if is_older else None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


async def allowed(cell: AsyncConnection) -> list[AllowedExtension]:
    """The cell's list. Works in any database of the cell."""
    rows = await (await cell.execute(_ALLOWED_STATES)).fetchall()
    return [AllowedExtension(*row) for row in rows]


@asynccontextmanager
async def changing(cell: AsyncConnection) -> AsyncIterator[None]:
    """A transaction in which the list can be read and set; no other one can change it meanwhile.

    Needs a connection to the maintenance database.
    """
    async with cell.transaction():
        await cell.execute("SELECT pg_advisory_xact_lock(%s)", (_LIST_LOCK,))
        yield


async def allow(cell: AsyncConnection, names: Sequence[str] | None) -> None:
    """Sets the cell's list, or removes it, so that the default applies. Raises RequestError if a name is not valid."""
    if names is None:
        await cell.execute(sql.SQL("ALTER DATABASE {} RESET plainsql.extensions").format(_STORE))
        return
    for name in names:
        if not _NAME.match(name):
            raise RequestError("invalid_extension", f"{name!r} is not the name of an extension.")
    listed = sql.Literal(",".join(sorted(set(names))))
    await cell.execute(sql.SQL("ALTER DATABASE {} SET plainsql.extensions = {}").format(_STORE, listed))


async def created(database: AsyncConnection) -> list[str]:
    """The extensions that the tenant has created in its database."""
    return [name for (name,) in await (await database.execute(_CREATED)).fetchall()]
