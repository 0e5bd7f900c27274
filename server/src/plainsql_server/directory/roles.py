"""Roles in the directory: whose an engine role is.

Owns reading the table `roles` by the engine's names. `directory/databases.py` writes it.
"""

from collections.abc import Sequence

from plainsql_server.directory.connection import Directory


async def tiers(directory: Directory, engine_names: Sequence[str]) -> dict[str, str]:
    """The tier of the organization that each of these roles belongs to, without those that are unknown."""
    statement = """
        SELECT r.engine_name, o.tier FROM roles r
        JOIN databases d ON d.id = r.database_id JOIN organizations o ON o.id = d.organization_id
        WHERE r.engine_name = ANY(%s)
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (list(engine_names),))).fetchall()
    return {row["engine_name"]: row["tier"] for row in rows}
