"""Finds the organization and the database that an engine role on a cell belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.directory.connection import Directory


@dataclass(frozen=True, slots=True)
class RoleOwner:
    """The database and the organization that a role belongs to."""

    organization: str
    tier: str
    database: str
    database_id: str
    kind: str
    cell_id: str


async def owners(directory: Directory, roles: Sequence[str]) -> dict[str, RoleOwner]:
    """The owner of each of these roles. Roles that the directory does not know are omitted."""
    statement = """
        SELECT r.engine_name, g.name AS organization, g.tier, d.name AS database, d.id AS database_id, r.kind, d.cell_id
        FROM roles r JOIN databases d ON d.id = r.database_id JOIN organizations g ON g.id = d.organization_id
        WHERE r.engine_name = ANY(%s) AND d.state <> 'deleted'
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (list(roles),))).fetchall()
    return {row.pop("engine_name"): RoleOwner(**row) for row in rows}
