"""The record of scheduled backups: when each database was last backed up, and when that last failed.

    await record_success(directory, database.id, size_bytes)
    state = await backup_state(directory)

The files themselves are the operator's; the directory does not know where they are. A database that was never backed
up counts from its creation, so a new one is not overdue.
"""

from dataclasses import dataclass
from datetime import datetime

from plainsql_server.directory.connection import Directory

# Stands for the directory itself, in place of the id of a database.
DIRECTORY = "directory"

_TARGETS = """
    SELECT d.id AS target, coalesce(b.succeeded_at, d.created_at) AS since, b.succeeded_at,
           coalesce(b.failed_at > coalesce(b.succeeded_at, '-infinity'), false) AS is_failing
    FROM databases d LEFT JOIN backups b ON b.database_id = d.id
    WHERE d.state IN ('ready', 'suspended')
"""
_STATE = f"""
    SELECT count(*) AS databases, min(since) AS oldest, count(*) FILTER (WHERE is_failing) AS failing,
           count(*) FILTER (WHERE succeeded_at IS NULL) AS never, max(succeeded_at) AS newest,
           (SELECT succeeded_at FROM backups WHERE target = '{DIRECTORY}') AS directory_at,
           (SELECT failed_at > coalesce(succeeded_at, '-infinity') FROM backups
            WHERE target = '{DIRECTORY}') AS is_directory_failing,
           (SELECT min(created_at) FROM cells) AS service_since, now() AS now
    FROM ({_TARGETS}) AS target
"""
_LATE = f"""
    SELECT target FROM ({_TARGETS}) AS target WHERE since < now() - %s * interval '1 s' ORDER BY since, target LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class BackupState:
    """The backups of all databases that can be backed up, in sum."""

    databases: int
    # How many of them were never backed up.
    never: int
    # How many of them, the directory included, failed when they were last tried.
    failing: int
    # The age of the oldest last backup. None: there is no database.
    oldest_age_s: float | None
    # The age of the directory's last backup. None: there is no cell yet, so nothing to lose.
    directory_age_s: float | None
    # When any database was last backed up.
    newest: datetime | None


async def record_success(directory: Directory, target: str, size_bytes: int) -> None:
    """Note that a backup was completed just now."""
    await _record(
        directory,
        """
        INSERT INTO backups (target, database_id, succeeded_at, size_bytes) VALUES (%(target)s, %(id)s, now(), %(size)s)
        ON CONFLICT (target) DO UPDATE SET succeeded_at = now(), size_bytes = %(size)s
        """,
        target,
        size_bytes,
    )


async def record_failure(directory: Directory, target: str) -> None:
    """Note that a backup failed just now."""
    await _record(
        directory,
        """
        INSERT INTO backups (target, database_id, failed_at) VALUES (%(target)s, %(id)s, now())
        ON CONFLICT (target) DO UPDATE SET failed_at = now()
        """,
        target,
        None,
    )


async def backup_state(directory: Directory) -> BackupState:
    """The state of all backups. Raises ServiceError if the directory is unavailable."""
    async with directory.connection() as connection:
        row = await (await connection.execute(_STATE)).fetchone()
    assert row is not None

    def age_s(since: datetime | None) -> float | None:
        return None if since is None else max(0.0, (row["now"] - since).total_seconds())

    return BackupState(
        databases=row["databases"],
        never=row["never"],
        failing=row["failing"] + bool(row["is_directory_failing"]),
        oldest_age_s=age_s(row["oldest"]),
        directory_age_s=age_s(row["directory_at"] or row["service_since"]),
        newest=row["newest"],
    )


async def database_states(directory: Directory) -> dict[str, str]:
    """The state of every database that the directory knows, deleted ones included, by id."""
    async with directory.connection() as connection:
        rows = await (await connection.execute("SELECT id, state FROM databases ORDER BY id")).fetchall()
    return {row["id"]: row["state"] for row in rows}


async def late(directory: Directory, older_than_s: float, at_most: int) -> list[str]:
    """The ids of databases whose last backup is older, the oldest first."""
    async with directory.connection() as connection:
        rows = await (await connection.execute(_LATE, (older_than_s, at_most))).fetchall()
    return [row["target"] for row in rows]


async def _record(directory: Directory, statement: str, target: str, size_bytes: int | None) -> None:
    values = {"target": target, "id": None if target == DIRECTORY else target, "size": size_bytes}
    async with directory.connection() as connection:
        await connection.execute(statement, values)
