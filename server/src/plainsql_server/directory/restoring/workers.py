"""The workers that carry out restores: which cells have one, and how far back their archives reach.

await note_worker(directory, cell.id, archive_since)
found = await find_worker(directory, cell.id, seen_within_s)
"""

from dataclasses import dataclass
from datetime import datetime

from plainsql_server.directory.connection import Directory


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The workers of a cell."""

    seen_at: datetime
    archive_since: datetime | None
    """The first point in time that the cell's archive reaches; None if it is not known yet."""


async def note_worker(directory: Directory, cell_id: str, archive_since: datetime | None) -> None:
    """Notes that a worker of the cell is there now, and how far back the archive reaches."""
    statement = """
        INSERT INTO restore_workers (cell_id, seen_at, archive_since) VALUES (%s, now(), %s)
        ON CONFLICT (cell_id) DO UPDATE SET seen_at = now(), archive_since = excluded.archive_since
    """
    async with directory.connection() as connection:
        await connection.execute(statement, (cell_id, archive_since))


async def worker_ages_s(directory: Directory) -> dict[str, float]:
    """Since when a worker was last seen, by the cell's id, of cells that had one."""
    statement = "SELECT cell_id, extract(epoch FROM now() - seen_at)::float8 AS age_s FROM restore_workers"
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement)).fetchall()
    return {row["cell_id"]: max(0.0, row["age_s"]) for row in rows}


async def find_worker(directory: Directory, cell_id: str, seen_within_s: float) -> WorkerRecord | None:
    """The workers of a cell, if one was seen lately."""
    statement = """
        SELECT seen_at, archive_since FROM restore_workers
        WHERE cell_id = %s AND seen_at > now() - %s * interval '1 s'
    """
    async with directory.connection() as connection:
        row = await (await connection.execute(statement, (cell_id, seen_within_s))).fetchone()
    return WorkerRecord(**row) if row else None
