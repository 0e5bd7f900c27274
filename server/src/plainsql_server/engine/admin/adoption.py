"""Examines a database on a cell that the directory does not know, before it is adopted.

    found = await examine(conninfo, admin_role, "d_0521bfa47b78af9809a210b2")
    if found is not None and not found.problems: ...

Only catalogs are read, and no customer's code runs. What is looked at is what a customer could not have changed, and
what someone with more rights could have: roles, settings, ownership, and functions that run as a superuser.
"""

from dataclasses import dataclass

from psycopg import AsyncConnection

from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE, TENANTS_ROLE
from plainsql_server.engine.admin.hardening import PINNED
from plainsql_server.engine.admin.provisioning import (
    EngineNames,
    admin_connection,
    backup_role_of,
    of_older_editions,
)

_DATABASE = """
    SELECT d.datallowconn, r.rolsuper,
           EXISTS (SELECT FROM aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) e WHERE e.grantee = 0),
           ARRAY(SELECT DISTINCT g.rolname::text FROM aclexplode(d.datacl) e JOIN pg_roles g ON g.oid = e.grantee
                 WHERE e.privilege_type = 'CONNECT' AND NOT g.rolsuper ORDER BY 1)
    FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE d.datname = %s
"""
_ROLES = """
    SELECT rolname::text, rolcanlogin AND NOT (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication
           OR rolbypassrls) AND rolpassword IS NULL,
           ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
                 WHERE m.member = a.oid)
    FROM pg_authid a WHERE rolname = ANY(%s)
"""
# Settings that only a superuser can have stored.
_SETTINGS = """
    SELECT DISTINCT p.name
    FROM pg_db_role_setting s
         LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase,
         unnest(s.setconfig) AS stored (pair) JOIN pg_settings p ON p.name = split_part(stored.pair, '=', 1)
    WHERE (d.datname = %s OR r.rolname = ANY(%s)) AND p.context NOT IN ('user', 'backend') AND p.name <> ALL(%s)
"""
_OTHER_OWNERS = """
    SELECT DISTINCT r.rolname::text FROM pg_shdepend s JOIN pg_roles r ON r.oid = s.refobjid
    WHERE s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.deptype = 'o'
      AND s.refclassid = 'pg_authid'::regclass AND NOT r.rolsuper AND r.rolname <> ALL(%s)
"""
_RUN_AS_SUPERUSER = """
    SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
    WHERE p.prosecdef AND r.rolsuper AND p.pronamespace <> 'pg_catalog'::regnamespace
      AND p.pronamespace IS DISTINCT FROM to_regnamespace('plainsql')
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                      AND d.deptype = 'e')
"""
_SERVICE_SCHEMA = (
    "SELECT r.rolsuper FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'plainsql'"
)


@dataclass(frozen=True, slots=True)
class ExaminedDatabase:
    """A database on a cell, and what speaks against using it."""

    names: EngineNames | None
    """Its name and its roles; None if it does not have exactly one owner and one reader."""
    problems: list[str]


async def examine(conninfo: str, admin_role: str, database: str) -> ExaminedDatabase | None:
    """Looks at a database. Returns None if the cell has none of that name. Raises EngineError if it is unavailable."""
    async with admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as cell:
        row = await (await cell.execute(_DATABASE, (database,))).fetchone()
        if row is None:
            return None
        is_open, is_services, is_public, roles = row
        problems = [
            *([] if is_open else ["it does not accept connections"]),
            *([] if is_services else ["it does not belong to a superuser"]),
            *(["PUBLIC has privileges on it"] if is_public else []),
        ]
        owners, readers = ([each for each in roles if each.startswith(f"{kind}_")] for kind in "or")
        if len(owners) != 1 or len(readers) != 1 or len(roles) != 2:
            return ExaminedDatabase(
                None, [*problems, f"one owner and one reader should be able to connect, not {roles}"]
            )
        if database in await of_older_editions(cell):
            problems.append("this version did not prepare it; run `plainsql-server upgrade` first")
        problems += await _of_roles(cell, database, [*roles, backup_role_of(owners[0])], owners[0])
    if is_open:
        async with admin_connection(conninfo, admin_role, database) as inside:
            problems += await _of_content(inside, roles)
    return ExaminedDatabase(EngineNames(database, owners[0], readers[0]), problems)


async def _of_roles(cell: AsyncConnection, database: str, roles: list[str], owner: str) -> list[str]:
    problems = []
    for role, is_ordinary, groups in await (await cell.execute(_ROLES, (roles,))).fetchall():
        if not is_ordinary:
            problems.append(f"the role {role} has a password or privileges that customers' roles don't have")
        # All are in the group of tenants, and the role of backups, if there is one, is a member of the owner.
        problems += [
            f"the role {role} is a member of {group}" for group in groups if group not in (TENANTS_ROLE, owner)
        ]
    stored = await (await cell.execute(_SETTINGS, (database, roles, list(PINNED)))).fetchall()
    return problems + [f"the setting {name} is stored for it or its roles" for (name,) in stored]


async def _of_content(inside: AsyncConnection, roles: list[str]) -> list[str]:
    schema = await (await inside.execute(_SERVICE_SCHEMA)).fetchone()
    problems = [] if schema is not None and schema[0] else ["the schema plainsql is missing, or a customer's"]
    others = await (await inside.execute(_OTHER_OWNERS, (roles,))).fetchall()
    problems += [f"the role {role} owns objects in it" for (role,) in others]
    functions = await (await inside.execute(_RUN_AS_SUPERUSER)).fetchall()
    return problems + [f"the function {name} runs as a superuser" for (name,) in functions]
