"""Restores one database as it was at a moment, as a new database or in place of what it is now.

    restored = await restore_at(directory, origin, point, archive, goal, folder=folder, progress=progress)

The cell's archive is restored to a spare cluster on this machine (`spare_cluster.py`), and the database in it is backed
up and restored as any other (`operations/backup.py`, `operations/restore.py`): with the customer's role, into a draft.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from psycopg import sql

from plainsql_server.control_plane.databases import cell_of
from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError, ServiceError
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import OUT_OF_SERVICE, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.fencing import allow_connections
from plainsql_server.engine.admin.provisioning import admin_connection
from plainsql_server.operations.backup import backup_content
from plainsql_server.operations.point_in_time.copied_from import copied_from
from plainsql_server.operations.point_in_time.free_space import check_space_for_database
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import archive_reach
from plainsql_server.operations.point_in_time.spare_cluster import spare_cluster_at
from plainsql_server.operations.progress import Progress

# As long as the archive's default lag.
_ARCHIVED_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1


_IS_ARCHIVED = "SELECT FROM pg_stat_archiver WHERE right(last_archived_wal, 16) >= right(%s, 16)"

# Restores the backup in a file, as `restore_database` or `replace_database` do. It gets the number of transactions that
# were prepared and are missing.
Goal = Callable[[BinaryIO, int], Awaitable[DatabaseRecord]]


@dataclass(frozen=True, slots=True)
class RestoredAt:
    """The restored database, and what is known about the moment."""

    database: DatabaseRecord
    last_commit_at: datetime | None
    prepared: int
    """How many of its transactions were prepared, and neither committed nor rolled back. They are not restored."""


async def restore_at(
    directory: Directory, origin: DatabaseRecord, point: datetime | None, archive: Archive, goal: Goal, *,
    folder: Path, progress: Progress,
) -> RestoredAt:  # fmt: skip
    """Restore the database `origin` as it was at the moment, and give the backup of that to `goal`.

    Without a moment, as it was last: with all that the archive has, and what was received and is not archived.
    It may have been deleted since, even for good. Raises RequestError for a moment that the archive does not reach,
    before anything is restored, and the errors of `goal`. If it fails or is cancelled, nothing has changed, and
    `folder` is as before.
    """
    at = point or now()
    (await archive_reach(archive)).check_start(at)
    # A database with its name may have been there, but not complete: a draft that was being filled, or a move's copy.
    if at < await stored.content_since(directory, origin.id):
        raise _not_there(origin)
    cell = await cell_of(directory, origin)
    # The files of the database, and the backup of it.
    await check_space_for_database(cell, origin, folder, copies=2)
    if point is None:
        await _close_wal(cell, progress)
    else:
        await archive_until(point, cell, archive, progress)
    sources = await copied_from(directory, origin, archive, point)
    async with spare_cluster_at(
        archive, origin.engine_name, cell.admin_role, point, sources=sources, parent=folder, progress=progress
    ) as spare:
        there = replace(cell, conninfo=spare.conninfo)
        await open_database(there, origin)
        prepared = await _roll_back_prepared(there, origin)
        with tempfile.TemporaryFile(dir=folder) as file:
            await backup_content(there, origin, file, progress)
            file.seek(0)
            restored = await goal(file, prepared)
        return RestoredAt(restored, spare.last_commit_at, prepared)


async def archive_until(point: datetime, cell: CellRecord, archive: Archive, progress: Progress) -> None:
    """Have the cell archive what it has written so far. If it can't, the archive must reach the moment without it.

    Raises RequestError if it does not.
    """
    # PostgreSQL itself says whether what was received reaches it.
    if not await _close_wal(cell, progress) and archive.received is None:
        (await archive_reach(archive)).check_end(point)


async def _close_wal(cell: CellRecord, progress: Progress) -> bool:
    """Have the cell archive what it has written so far. Returns False if it can't."""
    if cell.state in OUT_OF_SERVICE:
        return False
    progress.step("archive what was written last")
    try:
        async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
            async with admin.transaction():
                await admin.execute("SELECT pg_current_xact_id()")
            (closed,) = await (await admin.execute("SELECT pg_walfile_name(pg_switch_wal())")).fetchone() or ("",)
            end_s = time.monotonic() + _ARCHIVED_WITHIN_S
            while time.monotonic() < end_s:
                if (await admin.execute(_IS_ARCHIVED, (closed,))).rowcount:
                    return True
                await asyncio.sleep(_LOOK_EVERY_S)
    except ServiceError:
        # The cell may be what was lost.
        pass
    return False


async def open_database(cell: CellRecord, origin: DatabaseRecord) -> None:
    """Let connections to the database in: at the moment, a move may have closed it."""
    found = "SELECT FROM pg_database WHERE datname = %s"
    async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
        if not (await admin.execute(found, (origin.engine_name,))).rowcount:
            raise _not_there(origin)
        await allow_connections(admin, origin.engine_name, True)


async def _roll_back_prepared(cell: CellRecord, origin: DatabaseRecord) -> int:
    """Roll back what was prepared in the database: its locks would stop the dump. Return how many there were."""
    found = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    async with admin_connection(cell.conninfo, cell.admin_role, origin.engine_name) as admin:
        prepared = await (await admin.execute(found)).fetchall()
        for (gid,) in prepared:
            await admin.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    return len(prepared)


def _not_there(origin: DatabaseRecord) -> RequestError:
    return RequestError(
        "not_in_archive",
        f"At that moment, the database {origin.name!r} was not on the cell that it is on now, or not complete.",
        hint="It was created, moved or replaced later. Its old content, if it has one, is in `database list`.",
    )
