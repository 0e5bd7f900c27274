"""Restores a backup: a customer's database as a new one or in place of one, or the directory into an empty database.

A customer's objects are restored as the new database's owner role. Only the request records, which belong to the
service, are written by the cell's admin role. The database becomes visible once it is complete and its checksum has
been verified.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from psycopg.conninfo import make_conninfo

from plainsql_server.control_plane import drafts, lost_cells
from plainsql_server.control_plane.databases import cell_of
from plainsql_server.control_plane.moves import chosen_cell
from plainsql_server.core.errors import ConflictError, RequestError
from plainsql_server.directory import databases
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.restoring.restores import Finished
from plainsql_server.engine.admin import backups
from plainsql_server.operations.archive_parts import ArchiveReader, End, Manifest
from plainsql_server.operations.backup import DATABASE, DIRECTORY
from plainsql_server.operations.point_in_time.reconcile import postpone_unfinished
from plainsql_server.operations.programs import find_program, run, running
from plainsql_server.operations.progress import Progress
from plainsql_server.operations.schemas import OPTIONS, finish_schema, grant, renamed


@dataclass(frozen=True, slots=True)
class RestoreTimes:
    """How long replaced content can be restored, and how long nodes may take to notice the replacement."""

    restore_s: float
    applied_after_s: float


class _ArchiveChunks:
    """Reads the parts of a backup in another thread, one ahead."""

    def __init__(self, reader: ArchiveReader) -> None:
        self.manifest = reader.manifest
        self._reader = reader
        self._iterator: Iterator[tuple[str, bytes]] = reader.chunks()
        self._ahead: tuple[str, bytes] | None = None
        self.read_bytes = 0

    async def of(self, part: str) -> AsyncIterator[bytes]:
        """Yield the content of an archive, if it comes next in the backup."""
        while (chunk := await self._look()) is not None and chunk[0] == part:
            self._ahead = None
            yield chunk[1]

    async def end(self) -> End:
        """Check that the backup is complete. Raises RequestError if it isn't."""
        surplus = await self._look()
        if surplus is not None or self._reader.end is None:
            raise RequestError("backup_damaged", "The backup contains unexpected parts.")
        return self._reader.end

    async def _look(self) -> tuple[str, bytes] | None:
        if self._ahead is None:
            self._ahead = await asyncio.to_thread(next, self._iterator, None)
            self.read_bytes += len(self._ahead[1]) if self._ahead else 0
        return self._ahead


async def restore_database(
    directory: Directory,
    organization_id: str,
    name: str,
    source: BinaryIO,
    progress: Progress,
    *,
    to: str | None = None,
    of_another: bool = False,
) -> DatabaseRecord:
    """Restore a backup as a new database, on the cell `to` or on the one with the most free capacity.

    The backup must be of a database of this organization, unless `of_another`. Raises ConflictError if the name is
    taken, RequestError if the backup is incomplete or can't be restored. If it fails or is cancelled, nothing has
    changed.
    """
    chunks = _ArchiveChunks(await _open(source, DATABASE))
    origin = await _origin(directory, chunks.manifest)
    # Names of organizations are labels, which their owners choose.
    if not of_another and origin.organization_id not in ("", organization_id):
        raise RequestError(
            "wrong_backup",
            f"This is a backup of the database {chunks.manifest.name!r} of the organization"
            f" {origin.organization_id}, not of {organization_id}.",
            hint="If the other organization may have its content, add --of-another.",
        )
    on = None if to is None else await chosen_cell(directory, to, organization_id)
    async with drafts.draft(directory, organization_id, name, replaces=False, on=on) as made:
        end = await _fill(await cell_of(directory, made), made, chunks, progress)
        progress.step("publish")
        return await drafts.adopt(directory, made, without_code=end.without_code)


async def replace_database(
    directory: Directory,
    target: DatabaseRecord,
    source: BinaryIO,
    progress: Progress,
    *,
    times: RestoreTimes,
    lost: bool = False,
    to: str | None = None,
    of_another: bool = False,
    finished: Finished | None = None,
) -> DatabaseRecord:
    """Restore a backup into an existing database, which keeps its id, name and keys.

    The backup must be of this database, unless `of_another`. With `lost`, the cell that holds the database may be
    unavailable, if the operator has declared it lost. With `finished`, that restore is done at the same time. Raises
    ConflictError if the database can't be replaced, RequestError if the backup is incomplete or can't be restored. If
    it fails or is cancelled, nothing has changed.
    """
    chunks = _ArchiveChunks(await _open(source, DATABASE))
    origin = await _origin(directory, chunks.manifest)
    if not of_another and origin.database_ids and target.id not in origin.database_ids:
        raise RequestError(
            "wrong_backup",
            f"This is a backup of the database {chunks.manifest.name!r} ({origin.database_ids[-1]}), not of"
            f" {target.name!r} ({target.id}).",
            hint="If you want its content there, add --of-another.",
        )
    if target.state not in drafts.REPLACEABLE:
        raise ConflictError("wrong_state", f"The database {target.name!r} is {target.state}.")
    on = None if to is None else await chosen_cell(directory, to, target.organization_id)
    lost_since = await lost_cells.check(directory, target, lost=lost)
    async with drafts.draft(directory, target.organization_id, target.name, replaces=True, on=on) as made:
        if finished is not None:
            await restores.note_draft(directory, finished.restore, made.id)
        end = await _fill(await cell_of(directory, made), made, chunks, progress)
        if lost_since is not None:
            progress.step("last requests")
            await lost_cells.wait_until_unused(directory, target, lost_since, times.applied_after_s)
        progress.step("swap")
        if lost_since is not None:
            return await drafts.replace_lost(
                directory, made, target, lost_since, without_code=end.without_code, restore_s=times.restore_s
            )
        return await drafts.replace(
            directory,
            made,
            target,
            without_code=end.without_code,
            restore_s=times.restore_s,
            applied_after_s=times.applied_after_s,
            finished=finished,
        )


async def fill_branch(
    directory: Directory, branch: DatabaseRecord, source: BinaryIO, progress: Progress, finished: Finished
) -> DatabaseRecord:
    """Restore a backup of its parent into a branch that is reserved. The restore is done at the same time.

    Raises ConflictError if the branch was deleted, RequestError if the backup can't be restored. If it fails or is
    cancelled, nothing has changed.
    """
    chunks = _ArchiveChunks(await _open(source, DATABASE))
    cell = await cell_of(directory, branch)
    async with drafts.draft(directory, branch.organization_id, branch.name, replaces=True, on=cell) as made:
        await restores.note_draft(directory, finished.restore, made.id)
        await _fill(cell, made, chunks, progress)
        progress.step("publish")
        return await drafts.fill_branch(directory, made, branch, finished)


async def restore_directory(directory: Directory, dsn: str, source: BinaryIO, progress: Progress) -> int:
    """Restore a backup of the directory into an empty database, all or nothing.

    Returns how many creations, deletions and moves were unfinished in it. Nothing takes them up for 7 days. Restores to
    a point in time that were unfinished have failed. Raises
    ConflictError if the database is not empty, RequestError if the backup is incomplete.
    """
    chunks = _ArchiveChunks(await _open(source, DIRECTORY))
    async with directory.connection() as connection:
        tables = "SELECT FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LIMIT 1"
        if (await connection.execute(tables)).rowcount:
            raise ConflictError(
                "directory_not_empty",
                "The database in PLAINSQL_DIRECTORY_DSN is not empty.",
                hint="Create an empty database and use that.",
            )
        major = connection.info.server_version // 10_000
    program = find_program("pg_restore", max(major, chunks.manifest.dumped_by_major))
    progress.step("data", chunks.manifest.tables_bytes)
    conninfo = make_conninfo(dsn, application_name=backups.RESTORE)
    await _feed(program, (*OPTIONS, "--single-transaction"), conninfo, chunks, progress, whole=True)
    return await postpone_unfinished(directory)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The databases that had the content of a backup, oldest last, and their organization. Empty if unknown."""

    database_ids: tuple[str, ...]
    organization_id: str


async def _origin(directory: Directory, manifest: Manifest) -> _Origin:
    if manifest.database_id:
        return _Origin((manifest.database_id,), manifest.organization_id)
    # Older backups have no ids. The role is unknown if its organization was purged.
    found = await databases.list_by_owner_role(directory, manifest.owner_role)
    return _Origin(tuple(each.id for each in found), found[0].organization_id if found else "")


async def _open(source: BinaryIO, kind: str) -> ArchiveReader:
    reader = await asyncio.to_thread(ArchiveReader, source)
    if reader.manifest.kind != kind:
        raise RequestError("wrong_backup", f"This is a {reader.manifest.kind} backup, not a {kind} backup.")
    return reader


async def _fill(cell: CellRecord, made: DatabaseRecord, chunks: _ArchiveChunks, progress: Progress) -> End:
    """Restore into a draft. When this returns, the draft is complete and the backup was, too."""
    owner = backups.owners_conninfo(cell.conninfo, made.engine_name, made.owner_role, backups.RESTORE)
    # The draft has no other users, so it needs no serializable isolation.
    conninfo = make_conninfo(owner, options="-c default_transaction_isolation=read\\ committed")
    admin = (cell.conninfo, cell.admin_role, made.engine_name)
    await backups.forget_default_privileges(*admin, made.owner_role, made.reader_role)
    program = find_program("pg_restore", chunks.manifest.dumped_by_major)
    async with backups.attended(*admin):
        with tempfile.TemporaryDirectory(prefix="plainsql-restore-") as folder:
            schema = Path(folder) / "schema"
            progress.step("schema")
            await _save_schema(chunks, made, schema)
            await run(program, (*OPTIONS, "--section=pre-data", str(schema)), conninfo)
            progress.step("data", chunks.manifest.tables_bytes)
            await _feed(program, OPTIONS, conninfo, chunks, progress)
            progress.step("records")
            for table in backups.RECORDS:
                await backups.fill_records(*admin, table, chunks.of(table))
            end = await chunks.end()
            await finish_schema(program, schema, conninfo, progress)
            progress.step("privileges")
            await grant(program, schema, conninfo, made)
        progress.step("statistics")
        await backups.analyze(owner)
    return end


async def _save_schema(chunks: _ArchiveChunks, made: DatabaseRecord, file: Path) -> None:
    """Save the schema archive, with the old database's roles replaced by the new one's."""
    with file.open("wb") as stream:
        async for chunk in chunks.of("schema"):
            stream.write(chunk)
    old = chunks.manifest
    file.write_bytes(renamed(file.read_bytes(), (old.owner_role, old.reader_role), made))


async def _feed(
    program: Path,
    options: tuple[str, ...],
    conninfo: str,
    chunks: _ArchiveChunks,
    progress: Progress,
    *,
    whole: bool = False,
) -> None:
    """Restore the archive `data`. With `whole`, its last part is held back until the checksum is verified."""
    async with running(program, options, conninfo, takes_input=True) as process:
        assert process.stdin is not None
        held = b""
        async for chunk in chunks.of("data"):
            process.stdin.write(held)
            await process.stdin.drain()
            held = chunk
            progress.at(chunks.read_bytes)
        if whole:
            await chunks.end()
        process.stdin.write(held)
        await process.stdin.drain()
