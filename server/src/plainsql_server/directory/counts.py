"""Counts for operators: databases by cell and state, and active organizations, keys and sessions."""

from collections import defaultdict

from plainsql_server.directory.connection import Directory


async def databases_by_cell(directory: Directory) -> dict[str, dict[str, int]]:
    """The number of databases in each state, by cell id, without deleted ones."""
    statement = """
        SELECT cell_id, state, count(*) AS n FROM databases WHERE state <> 'deleted' GROUP BY cell_id, state
        ORDER BY cell_id, state
    """
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    async with directory.connection() as connection:
        for row in await (await connection.execute(statement)).fetchall():
            counts[row["cell_id"]][row["state"]] = row["n"]
    return dict(counts)


async def engine_names(directory: Directory, cell_id: str) -> dict[str, str]:
    """The state of each database on a cell, by its name there, without deleted ones."""
    statement = "SELECT engine_name, state FROM databases WHERE cell_id = %s AND state <> 'deleted'"
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (cell_id,))).fetchall()
    return {row["engine_name"]: row["state"] for row in rows}


async def totals(directory: Directory) -> dict[str, int]:
    """The number of organizations, active keys and active sessions."""
    statement = """
        SELECT (SELECT count(*) FROM organizations) AS organizations,
               (SELECT count(*) FROM api_keys
                WHERE revoked_at IS NULL AND coalesce(expires_at > now(), true)) AS keys,
               (SELECT count(*) FROM sessions WHERE ended_at IS NULL AND expires_at > now()) AS sessions
    """
    async with directory.connection() as connection:
        row = await (await connection.execute(statement)).fetchone()
    assert row is not None
    return dict(row)
