"""Rehearses a restore: restores a database from the archive of its cell, and compares it with what it was.

    rehearsed = await rehearse(directory, cell, candidates, archive, folder=folder, progress=progress)

The database that is restored is the first of the candidates that has rows and can be read (`table_contents.py`): what
its customer does may prevent that, and says nothing about the archive. To restore an empty one proves nothing. Whatever
else fails, be it a full disk or a bug, is recorded as a failed rehearsal in the directory, where `doctor` and the
metrics find it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from plainsql_server.core.errors import ConflictError, LimitError, RequestError, ServiceError
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.upkeep.rehearsal_record import record_rehearsal
from plainsql_server.operations.point_in_time.copied_from import copied_from
from plainsql_server.operations.point_in_time.failures import failure_of
from plainsql_server.operations.point_in_time.free_space import FREE_RATIO, check_space_for_databases
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.restore_at import archive_until, open_database
from plainsql_server.operations.point_in_time.spare_cluster import spare_cluster_at
from plainsql_server.operations.point_in_time.table_contents import Contents, contents_of, differences
from plainsql_server.operations.progress import Progress

# With more, a night in which all databases are being written would never end.
_TRIED = 5
# Reading one without rows takes no time, but a cell may have thousands of them.
_EMPTY_TRIED = 100
# A customer's database can be of any size, and its snapshot keeps vacuum from removing rows on the whole cell.
_READ_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A rehearsal that succeeded."""

    database: DatabaseRecord
    contents: Contents


async def rehearse(
    directory: Directory, cell: CellRecord, candidates: Sequence[DatabaseRecord], archive: Archive, *, folder: Path,
    free_ratio: float = FREE_RATIO, progress: Progress,
) -> Rehearsed:  # fmt: skip
    """Restore one of the databases, compare it, and record how that ended. `folder` is as before at the end.

    Raises RequestError if it can't be restored or differs, and ConflictError, LimitError or RequestError, unrecorded,
    if no candidate can be read and has rows. Raises nothing but ServiceErrors.
    """
    progress.step("read the database")
    try:
        database, expected = await _first_readable(cell, candidates)
    except (ConflictError, LimitError, RequestError):
        raise
    except Exception as error:
        raise await _recorded(directory, cell, error) from error
    try:
        sources = await copied_from(directory, database, archive, expected.taken_at)
        found = await _restored(
            cell, database, expected.taken_at, archive, sources=sources, folder=folder, free_ratio=free_ratio,
            progress=progress,
        )  # fmt: skip
        differing = differences(expected, found)
        if differing:
            raise RequestError(
                "archive_differs",
                f"The database {database.id} was restored from the archive as it was at"
                f" {expected.taken_at.isoformat()}, and differs from what it was then: {'; '.join(differing)}.",
                hint="Keep the archive, make a full backup, and look for the cause: docs/backups.md.",
            )
    except Exception as error:
        raise await _recorded(directory, cell, error) from error
    await record_rehearsal(directory, cell.id, succeeded=True)
    return Rehearsed(database, expected)


async def _recorded(directory: Directory, cell: CellRecord, error: Exception) -> ServiceError:
    """Record that a rehearsal has failed. Returns the error to raise."""
    failure = failure_of("The rehearsal", error)
    # One that a signal has ended says nothing about the archive.
    if failure.code == "restore_ended":
        return failure
    try:
        await record_rehearsal(directory, cell.id, succeeded=False)
    except ServiceError as unrecorded:
        # The operator must still read why it failed.
        why = unrecorded.internal_context or unrecorded.message
        failure.internal_context = f"{failure.internal_context or ''} This could not be recorded: {why}"
    return failure


async def _first_readable(cell: CellRecord, candidates: Sequence[DatabaseRecord]) -> tuple[DatabaseRecord, Contents]:
    tried, empty = list[ServiceError](), 0
    for database in candidates:
        if len(tried) == _TRIED or empty == _EMPTY_TRIED:
            break
        try:
            contents = await contents_of(cell, database, limit_s=_READ_S)
        except (ConflictError, LimitError, RequestError) as error:
            tried.append(error)
            continue
        if contents.rows:
            return database, contents
        empty += 1
    if tried:
        raise tried[-1]
    if empty:
        raise RequestError(
            "no_database",
            f"The databases of the cell {cell.name!r} that were read have no rows: {empty}. To restore an empty"
            " database proves nothing.",
            hint="Rehearse again when customers have stored something, or choose a database with --database.",
        )  # fmt: skip
    raise RequestError("no_database", f"The cell {cell.name!r} has no database to restore.")


async def _restored(
    cell: CellRecord, database: DatabaseRecord, point: datetime, archive: Archive, *, sources: Collection[str],
    folder: Path, free_ratio: float, progress: Progress,
) -> Contents:  # fmt: skip
    await check_space_for_databases(cell, database, sources, folder, copies=1, free_ratio=free_ratio)
    await archive_until(point, cell, archive, progress)
    async with spare_cluster_at(
        archive, database.engine_name, cell.admin_role, point, sources=sources, parent=folder, free_ratio=free_ratio,
        progress=progress,
    ) as spare:  # fmt: skip
        there = replace(cell, conninfo=spare.conninfo)
        await open_database(there, database)
        progress.step("compare")
        return await contents_of(there, database)
