"""Which databases a database may have been copied from, as far as the directory knows.

    steps = await lineage(directory, database_id)
    steps[0].engine_name, steps[0].is_certain

A branch is a copy of what its parent had at that time. The directory knows the parent, but a move, a restore or a
replacement exchanges the content of a record; then it is not certain that the parent still has what was copied.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from plainsql_server.directory.connection import Directory


@dataclass(frozen=True, slots=True)
class LineageStep:
    """A database, or the parent of the one before it."""

    engine_name: str
    content_since: datetime
    """Since when it has its content."""
    is_certain: bool
    """Whether its content is what it was created with, or what was put into it since, and it had it by the time at
    which the one before was copied from it. Otherwise, any database of the organization may be what was copied."""


async def lineage(directory: Directory, database_id: str) -> list[LineageStep]:
    """The database, its parent, the parent of that, and so on, with those that are deleted."""
    # A record that got the content which was replaced in another one is younger than that content.
    statement = """
        WITH RECURSIVE line AS (
            SELECT 0 AS depth, id, branch_of, engine_name, created_at, content_since,
                   content_since >= created_at AS is_certain
            FROM databases WHERE id = %s
            UNION ALL
            SELECT line.depth + 1, p.id, p.branch_of, p.engine_name, p.created_at, p.content_since,
                   p.content_since >= p.created_at AND p.content_since <= line.created_at
            FROM line JOIN databases p ON p.id = line.branch_of
        )
        SELECT engine_name, content_since, is_certain FROM line ORDER BY depth
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (database_id,))).fetchall()
    return [LineageStep(**row) for row in rows]


async def had_branches(directory: Directory, organization_id: str) -> bool:
    """Whether the organization has, or ever had, a branch."""
    statement = "SELECT FROM databases WHERE organization_id = %s AND branch_of IS NOT NULL LIMIT 1"
    async with directory.connection() as connection:
        return (await connection.execute(statement, (organization_id,))).rowcount > 0


async def of_others(directory: Directory, organization_id: str, engine_names: Collection[str]) -> set[str]:
    """Those of the names that are known to be of other organizations."""
    statement = "SELECT engine_name FROM databases WHERE organization_id <> %s AND engine_name = ANY(%s)"
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (organization_id, list(engine_names)))).fetchall()
    return {row["engine_name"] for row in rows}
