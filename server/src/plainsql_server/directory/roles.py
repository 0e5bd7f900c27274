"""Whose an engine role is: the way back from a cell's names to organizations and databases.

Owns that look-up. Refuses to know what the role does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.directory.connection import Directory


@dataclass(frozen=True, slots=True)
class RoleOwner:
    """The database that a role belongs to, and its organization."""

    organization: str
    database: str
    database_id: str
    kind: str
    cell_id: str


async def owners(directory: Directory, roles: Sequence[str]) -> dict[str, RoleOwner]:
    """Who each of these roles belongs to, without those that the directory does not know."""
    statement = """
        SELECT r.engine_name, g.name AS organization, d.name AS database, d.id AS database_id, r.kind, d.cell_id
        FROM roles r JOIN databases d ON d.id = r.database_id JOIN organizations g ON g.id = d.organization_id
        WHERE r.engine_name = ANY(%s) AND d.state <> 'deleted'
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (list(roles),))).fetchall()
    return {row.pop("engine_name"): RoleOwner(**row) for row in rows}
