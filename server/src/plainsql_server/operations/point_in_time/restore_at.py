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
from plainsql_server.operations.point_in_time.free_space import FREE_RATIO, check_space_for_databases
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import archive_reach, newest_file
from plainsql_server.operations.point_in_time.received import parsed_position, received_files, shown_position
from plainsql_server.operations.point_in_time.spare_cluster import SpareCluster, ending_in_order, spare_cluster_at
from plainsql_server.operations.progress import Progress

# As long as the archive's default lag.
_ARCHIVED_WITHIN_S = 60.0
# A receiver that follows is a fraction of a second behind.
_RECEIVED_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.1

# Files are archived in their order. What was archived last may also be the record of a backup, which is named after the
# file with which that begins, or the history of a timeline, which says nothing about files.
_IS_ARCHIVED = """
    SELECT FROM pg_stat_archiver
    WHERE last_archived_wal ~ '^[0-9A-F]{24}($|[.][0-9A-F]{8}[.]backup$)'
      AND substr(last_archived_wal, 9, 16) >= substr(%s, 9) COLLATE "C"
"""
# With --replace, the old content stays closed for some seconds after the new one was published.
_ENDED = (
    "If it was at the step `swap`, the content may have been replaced: then `database list` shows the old content, as"
    " a database that is being deleted."
)
# The name of a file begins with its timeline.
_TIMELINE_LENGTH = 8

_CLOSE = "SELECT pg_walfile_name(closed), closed::text FROM pg_switch_wal() AS closed"

# Restores the backup in a file, as `restore_database` or `replace_database` do. It gets the number of transactions that
# were prepared and are missing.
Goal = Callable[[BinaryIO, int], Awaitable[DatabaseRecord]]


@dataclass(frozen=True, slots=True)
class _WalEnd:
    """Where the WAL of a cell ended when it was asked."""

    file: str
    """The last file that it has closed."""
    position: int
    is_archived: bool

    @property
    def timeline(self) -> int:
        return int(self.file[:_TIMELINE_LENGTH], 16)


@dataclass(frozen=True, slots=True)
class RestoredAt:
    """The restored database, and what is known about the moment."""

    database: DatabaseRecord
    last_commit_at: datetime | None
    prepared: int
    """How many of its transactions were prepared, and neither committed nor rolled back. They are not restored."""
    is_whole: bool
    """Whether it is known to have all that the cell had written when the restore began."""
    received_until: datetime | None
    """When something was received last, if it has all that was received."""


async def restore_at(
    directory: Directory, origin: DatabaseRecord, point: datetime | None, archive: Archive, goal: Goal, *,
    folder: Path, free_ratio: float = FREE_RATIO, may_lack_the_last: bool = False, progress: Progress,
) -> RestoredAt:  # fmt: skip
    """Restore the database `origin` as it was at the moment, and give the backup of that to `goal`.

    Without a moment, as it was last: with all that the archive has, and what was received and is not archived. Unless
    it `may_lack_the_last`, raises RequestError if that ends before what the cell has written, as the cell says; if the
    cell is lost, if nothing was received from it, or less than was archived.

    The database may have been deleted since, even for good. Raises RequestError for a moment that the archive does not
    reach, before anything is restored; if less than `free_ratio` of the disk of `folder` is free at any time before
    `goal`; and the errors of `goal`. If it fails, nothing has changed; nor if it is cancelled, unless `goal` had
    already replaced the content. `folder` is as before.
    """
    at = point or now()
    (await archive_reach(archive)).check_start(at)
    # A database with its name may have been there, but not complete: a draft that was being filled, or a move's copy.
    if at < await stored.content_since(directory, origin.id):
        raise _not_there(origin)
    cell = await cell_of(directory, origin)
    sources = await copied_from(directory, origin, archive, point)
    # The files of the database, and the backup of it.
    await check_space_for_databases(cell, origin, sources, folder, copies=2, free_ratio=free_ratio)
    end = None
    if point is not None:
        await archive_until(point, cell, archive, progress)
    else:
        end = await _close_wal(cell, progress)
        if not may_lack_the_last and (end is None or not end.is_archived):
            await _check_received(cell, archive, end)
    with ending_in_order(hint=_ENDED), tempfile.TemporaryFile(dir=folder) as file:
        async with spare_cluster_at(
            archive, origin.engine_name, cell.admin_role, point, sources=sources, parent=folder, free_ratio=free_ratio,
            progress=progress,
        ) as spare:  # fmt: skip
            is_whole = end is not None and spare.replay.reached(end.timeline) >= end.position
            if end is not None and not is_whole and (end.is_archived or not may_lack_the_last):
                raise _not_replayed(spare, end)
            there = replace(cell, conninfo=spare.conninfo)
            await open_database(there, origin)
            prepared = await _roll_back_prepared(there, origin)
            await backup_content(there, origin, file, progress)
            progress.step("remove the spare cluster")
        # Without the spare cluster, which watches the disk: once the content is replaced, no full disk may end this.
        file.seek(0)
        restored = await goal(file, prepared)
        return RestoredAt(restored, spare.last_commit_at, prepared, is_whole, spare.received_until)


async def archive_until(point: datetime, cell: CellRecord, archive: Archive, progress: Progress) -> None:
    """Have the cell archive what it has written so far. If it can't, the archive must reach the moment without it.

    Raises RequestError if it does not.
    """
    end = await _close_wal(cell, progress)
    # PostgreSQL itself says whether what was received reaches it.
    if (end is None or not end.is_archived) and archive.received is None:
        (await archive_reach(archive)).check_end(point)


async def _close_wal(cell: CellRecord, progress: Progress) -> _WalEnd | None:
    """Have the cell archive what it has written so far. Returns the end of that, or None if the cell does not answer.

    It may answer, and be unable to archive.
    """
    if cell.state in OUT_OF_SERVICE:
        return None
    progress.step("archive what was written last")
    end = None
    try:
        async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
            async with admin.transaction():
                await admin.execute("SELECT pg_current_xact_id()")
            ((file, position),) = await (await admin.execute(_CLOSE)).fetchall()
            end = _WalEnd(file, parsed_position(position), is_archived=False)
            end_s = time.monotonic() + _ARCHIVED_WITHIN_S
            while time.monotonic() < end_s:
                if (await admin.execute(_IS_ARCHIVED, (file,))).rowcount:
                    return replace(end, is_archived=True)
                await asyncio.sleep(_LOOK_EVERY_S)
    except ServiceError:
        # The cell may be what was lost.
        pass
    return end


async def _check_received(cell: CellRecord, archive: Archive, end: _WalEnd | None) -> None:
    """Raises RequestError if what was received ends before the WAL of a cell that can't archive that, as far as known.

    A lost cell does not tell its end. Then what was received must have as much as the archive: a receiver that follows
    has each file before the archive does.
    """
    needed = end.file if end is not None else await newest_file(archive) or ""
    limit_s = time.monotonic() + (_RECEIVED_WITHIN_S if end is not None and archive.received is not None else 0)
    while not (newest := _newest_received(archive, is_closed=end is not None)) or newest < needed[_TIMELINE_LENGTH:]:
        if time.monotonic() >= limit_s:
            raise await _too_short(cell, archive, end, newest)
        await asyncio.sleep(_LOOK_EVERY_S)


def _newest_received(archive: Archive, *, is_closed: bool) -> str:
    """The name of the newest received file, or of the newest complete one, without its timeline; empty if none is."""
    files = received_files(archive.received) if archive.received is not None else []
    return max((file.name[_TIMELINE_LENGTH:] for file in files if file.is_complete or not is_closed), default="")


async def _too_short(cell: CellRecord, archive: Archive, end: _WalEnd | None, newest: str) -> RequestError:
    lacks = "what was received ends before that" if newest else "nothing was received from it"
    written = "it may have written more" if end is None else f"nothing has its WAL up to {shown_position(end.position)}"
    hint = "If the cell's WAL was received, add --received."
    if archive.received is not None:
        hint = "If the cell runs, start its receiver: `doctor` says whether it receives."
    return RequestError(
        "archive_too_short",
        f"The cell {cell.name!r} can't archive what it wrote last, and {lacks}, so {written}."
        f" {await archive_reach(archive)}",
        hint=f"{hint} `--at archived` restores what there is.",
    )


def _not_replayed(spare: SpareCluster, end: _WalEnd) -> RequestError:
    replayed = f"Timeline {end.timeline} was replayed up to {shown_position(spare.replay.reached(end.timeline))}"
    written = shown_position(end.position)
    if end.is_archived:
        return RequestError(
            "archive_failed",
            f"{replayed}, and the cell has archived it up to {written}.",
            hint="Is this the archive of that cell? `pgbackrest verify` says which file is missing.",
        )
    return RequestError(
        "archive_too_short",
        f"{replayed}, and the cell has written it up to {written}.",
        hint="Was this received from that cell? `--at archived` restores what there is.",
    )


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
