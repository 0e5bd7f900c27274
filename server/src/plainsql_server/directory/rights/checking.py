"""Compares the rights of the current login with those that a plane needs.

for lacking in await missing(connection, Role.DATA): ...
fitting = await least_role(connection)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row, tuple_row

from plainsql_server.directory.rights.grants import FUNCTIONS, SEQUENCES, TABLES, Role, privileges_of

_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")

# Objects that do not exist give null: an older schema lacks them.
_TABLES = """
    SELECT name, privilege, col
    FROM unnest(%s::text[], %s::text[], %s::text[]) AS needed (name, privilege, col)
    WHERE NOT coalesce(
        CASE WHEN col IS NULL THEN has_table_privilege(to_regclass('public.' || name), privilege)
             WHEN to_regclass('public.' || name) IS NULL THEN false
             ELSE has_column_privilege(to_regclass('public.' || name), col, privilege) END, false)
"""
_FUNCTIONS = """
    SELECT name FROM unnest(%s::text[]) AS needed (name)
    WHERE NOT coalesce(has_function_privilege(to_regprocedure('public.' || name), 'EXECUTE'), false)
"""
# Whole tables only, of which a role with a column's privilege may have none.
_HELD = """
    SELECT c.relname, p.privilege FROM pg_class c, unnest(%s::text[]) AS p (privilege)
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND has_table_privilege(c.oid, p.privilege)
"""
_LOGIN = """
    SELECT rolname AS name, rolsuper AS is_superuser, rolcreaterole OR rolbypassrls OR rolreplication AS is_powerful,
           EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                   AND pg_has_role(relowner, 'MEMBER')) AS is_owner
    FROM pg_roles WHERE rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class Login:
    """The role that is logged in."""

    name: str
    is_superuser: bool
    is_powerful: bool
    """Whether it has another attribute that no plane needs."""
    is_owner: bool
    """Whether it is, or can become, the owner of tables."""


async def missing(connection: AsyncConnection[Any], role: Role) -> list[str]:
    """What the current login lacks of a role's rights, for messages."""
    needed = list(_needed(role))
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_TABLES, [list(each) for each in zip(*needed, strict=True)])
        lacking = [
            f"{right}{f' ({column})' if column else ''} on {name}" for name, right, column in await cursor.fetchall()
        ]
        functions = [name for name, allowed in FUNCTIONS.items() if role in allowed]
        await cursor.execute(_FUNCTIONS, (functions,))
        return [*lacking, *(f"EXECUTE on {name}" for (name,) in await cursor.fetchall())]


async def least_role(connection: AsyncConnection[Any]) -> Role | None:
    """The least of the roles that may do all that the current login may do to tables; None if it may do more."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_HELD, (list(_PRIVILEGES),))
        held = set(await cursor.fetchall())
    for role in Role:
        allowed = {(name, privilege) for name, privilege, column in _needed(role) if column is None}
        if held <= allowed:
            return role
    return None


async def login(connection: AsyncConnection[Any]) -> Login:
    """Who is logged in to the directory."""
    async with connection.cursor(row_factory=class_row(Login)) as cursor:
        found = await (await cursor.execute(_LOGIN)).fetchone()
    assert found is not None
    return found


def _needed(role: Role) -> Iterator[tuple[str, str, str | None]]:
    for granted in (TABLES, SEQUENCES):
        for name, by_role in granted.items():
            for privilege, column in privileges_of(by_role.get(role, "")):
                yield name, privilege, column
