"""Revokes in the template database what PostgreSQL allows PUBLIC but a tenant must not have.

Contains the lists of forbidden functions and of settings that are pinned for a tenant's role. `extensions.py` guards
the extensions. Every tenant's database is copied from the template.
"""

import hashlib
from typing import Literal

from psycopg import AsyncConnection, sql

from plainsql_server.engine.admin import extensions
from plainsql_server.engine.admin.cell import TEMP_FILE_LIMIT

# Functions that PUBLIC may execute in a new database but a tenant must not. They fill structures that all tenants of
# the cell share (lock table, notification queue), write to the WAL at will, access the server's files, identify the
# cluster, list the gids of other tenants' prepared transactions, or read the lock table, which blocks it for everyone
# meanwhile.
FORBIDDEN_FUNCTIONS = (
    r"^(pg_(try_)?advisory_.*|pg_notify|pg_logical_emit_message|lo_.*|lowrite|pg_export_snapshot"
    r"|pg_tablespace_(size|databases|location)|inet_server_(addr|port)|pg_prepared_xact"
    r"|pg_control_(system|checkpoint|recovery|init)"
    r"|pg_lock_status|pg_(safe_snapshot_)?blocking_pids|pg_isolation_test_session_is_blocked)$"
)

# Superuser-only settings, set for each tenant's role, so that a tenant cannot change them. With them, a tenant cannot
# write to the server log, neither with errors that quote values nor with RAISE LOG.
PINNED = {
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_min_duration_sample": "-1",
    "log_duration": "off",
    "temp_file_limit": TEMP_FILE_LIMIT,
    "session_replication_role": "origin",
}

# Before PostgreSQL 15, PUBLIC could create objects in the schema public of every database, and pg_upgrade keeps that.
CLOSED_SCHEMA = "REVOKE CREATE ON SCHEMA public FROM PUBLIC"

_FUNCTIONS = """
    SELECT p.oid::regprocedure::text FROM pg_proc p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ %s
"""
_OPEN_FUNCTIONS = f"""
    {_FUNCTIONS} AND EXISTS (
        SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS entry WHERE entry.grantee = 0)
"""
# Runs at the end of every command that grants, as the granting role. Every tenant can see every role, and a grant to
# another tenant's role would keep that role from being dropped.
_GRANT_GUARD = """
    CREATE OR REPLACE FUNCTION plainsql.check_grants() RETURNS event_trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = current_user AND NOT rolsuper) AND EXISTS (
            SELECT FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid JOIN pg_roles r ON r.oid = s.refobjid
            WHERE d.datname = current_database() AND s.refclassid = 'pg_authid'::regclass AND s.deptype IN ('a', 'r')
              AND NOT has_database_privilege(r.oid, d.oid, 'CONNECT')
        ) THEN
            RAISE insufficient_privilege USING MESSAGE = 'a role that cannot use this database can be granted nothing';
        END IF;
    END $$;
    REVOKE ALL ON FUNCTION plainsql.check_grants() FROM PUBLIC;
    DROP EVENT TRIGGER IF EXISTS plainsql_check_grants;
    CREATE EVENT TRIGGER plainsql_check_grants ON ddl_command_end
        WHEN TAG IN ('GRANT', 'ALTER DEFAULT PRIVILEGES', 'CREATE POLICY', 'ALTER POLICY', 'CREATE SCHEMA')
        EXECUTE FUNCTION plainsql.check_grants();
    ALTER EVENT TRIGGER plainsql_check_grants ENABLE ALWAYS;
"""


# Identifies the version of these lists and guards, texts included. A database's COMMENT, which only the service can
# write, stores the version it was hardened with.
EDITION = hashlib.sha256(repr((FORBIDDEN_FUNCTIONS, PINNED, _GRANT_GUARD, extensions.GUARDS)).encode()).hexdigest()[:12]


async def harden(template: AsyncConnection) -> None:
    """Applies the restrictions in the connection's database. Needs a superuser. Can be run again."""
    await _revoke_functions(template)
    await template.execute(extensions.GUARDS.encode())
    await template.execute(_GRANT_GUARD)


async def functions_like(connection: AsyncConnection, pattern: str) -> list[sql.SQL]:
    """The signatures of PostgreSQL's own functions whose names match the pattern."""
    cursor = await connection.execute(_FUNCTIONS, (pattern,))
    # Signatures come from the catalog as `regprocedure`, which quotes identifiers.
    return [sql.SQL(signature) for (signature,) in await cursor.fetchall()]


def pins(kind: Literal["ROLE", "DATABASE"], name: str) -> list[sql.Composed]:
    """Statements that pin the settings for a tenant's role or database.

    They are set for the database, too, because autovacuum calls a tenant's functions without logging in as its role.
    """
    pin = sql.SQL(f"ALTER {kind} {{}} SET {{}} = {{}}")
    return [
        pin.format(sql.Identifier(name), sql.Identifier(setting), sql.Literal(value))
        for setting, value in PINNED.items()
    ]


async def _revoke_functions(template: AsyncConnection) -> None:
    cursor = await template.execute(_OPEN_FUNCTIONS, (FORBIDDEN_FUNCTIONS,))
    for (signature,) in await cursor.fetchall():
        await template.execute(sql.SQL("REVOKE EXECUTE ON FUNCTION {} FROM PUBLIC").format(sql.SQL(signature)))
