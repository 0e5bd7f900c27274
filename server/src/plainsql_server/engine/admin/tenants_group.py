"""The group role of everyone a data plane logs in as: the tenants' roles and the probe role.

A cell's pg_hba.conf admits only this group with a data plane's certificate, so the certificate opens no other role. The
group itself can't log in and has no privileges. Members inherit nothing, can't add others, and from PostgreSQL 16 on
can't become the group; in PostgreSQL 15, `SET ROLE plainsql_tenants` gives up a tenant's own privileges.
"""

from collections.abc import Sequence

from psycopg import AsyncConnection, sql

from plainsql_server.engine.admin.cell import TENANTS_ROLE
from plainsql_server.engine.pool.health import PROBE_ROLE

# Two creations at once may both find no group.
_CREATE = f"""
    DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{TENANTS_ROLE}') THEN
            CREATE ROLE {TENANTS_ROLE} NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT;
        END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$
"""
# NOT IN, because PostgreSQL would compare each role with each member in a NOT EXISTS if it has no statistics of them.
_MISSING = """
    SELECT r.rolname FROM pg_roles r
    WHERE (r.rolname ~ '^[or]_[0-9a-f]{24}$' OR r.rolname = %s) AND r.oid NOT IN (
        SELECT m.member FROM pg_auth_members m WHERE m.roleid = to_regrole(%s))
    ORDER BY r.rolname
"""
_OPTIONS_FROM = 160_000


async def create(cell: AsyncConnection) -> None:
    """Creates the group if it is missing."""
    await cell.execute(_CREATE.encode())


def add(cell: AsyncConnection, roles: Sequence[str]) -> sql.Composed:
    """A statement that makes roles members of the group."""
    options = sql.SQL(" WITH INHERIT FALSE, SET FALSE" if cell.info.server_version >= _OPTIONS_FROM else "")
    members = sql.SQL(", ").join(sql.Identifier(role) for role in roles)
    return sql.SQL("GRANT {} TO {}{}").format(sql.Identifier(TENANTS_ROLE), members, options)


async def missing(cell: AsyncConnection) -> list[str]:
    """Roles that a data plane logs in as and that are not in the group."""
    return [name for (name,) in await (await cell.execute(_MISSING, (PROBE_ROLE, TENANTS_ROLE))).fetchall()]


async def add_missing(cell: AsyncConnection) -> None:
    """Makes the roles of existing databases members. They inherit nothing from then on."""
    roles = await missing(cell)
    if not roles:
        return
    for role in roles:
        await cell.execute(sql.SQL("ALTER ROLE {} NOINHERIT").format(sql.Identifier(role)))
    await cell.execute(add(cell, roles))
