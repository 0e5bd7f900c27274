"""The record of rehearsals: when a restore from the archive of each cell last succeeded, and when it last failed.

    await record_rehearsal(directory, cell.id, succeeded=True)
    states = await rehearsal_states(directory)

A cell that was never rehearsed counts from when it was added, so a new one is not overdue.
"""

from dataclasses import dataclass

from plainsql_server.directory.connection import Directory

_STATES = """
    SELECT c.id, r.succeeded_at IS NOT NULL AS has_succeeded,
           extract(epoch FROM now() - coalesce(r.succeeded_at, c.created_at))::float8 AS age_s,
           coalesce(r.failed_at > coalesce(r.succeeded_at, '-infinity'), false) AS is_failing
    FROM cells c LEFT JOIN rehearsals r ON r.cell_id = c.id
    WHERE c.state <> 'removed'
"""
_RECORD = """
    INSERT INTO rehearsals (cell_id, {column}) VALUES (%s, now())
    ON CONFLICT (cell_id) DO UPDATE SET {column} = now()
"""


@dataclass(frozen=True, slots=True)
class RehearsalState:
    """The rehearsals of one cell."""

    has_succeeded: bool
    # Since the last one that succeeded, or else since the cell was added.
    age_s: float
    # Whether the last one failed.
    is_failing: bool


async def record_rehearsal(directory: Directory, cell_id: str, *, succeeded: bool) -> None:
    """Note that a rehearsal ended just now."""
    column = "succeeded_at" if succeeded else "failed_at"
    async with directory.connection() as connection:
        await connection.execute(_RECORD.format(column=column), (cell_id,))


async def rehearsal_states(directory: Directory) -> dict[str, RehearsalState]:
    """The state of every cell's rehearsals by the cell's id. Raises ServiceError if the directory is unavailable."""
    async with directory.connection() as connection:
        rows = await (await connection.execute(_STATES)).fetchall()
    return {row["id"]: RehearsalState(row["has_succeeded"], max(0.0, row["age_s"]), row["is_failing"]) for row in rows}
