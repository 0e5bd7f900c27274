"""Restoring a backup: a customer's database beside what is there, or the directory into an empty database.

Owns the order of steps and as whom each is done. Everything that a backup says of a customer's objects is done as
the new database's owner role; only the records of requests, which are the service's own, are written by the
cell's admin. Nobody sees the database before all of it is there and its checksum was right.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from psycopg.conninfo import make_conninfo

from plainsql_server.control_plane import drafts
from plainsql_server.control_plane.databases import cell_of, get_by_name
from plainsql_server.core.errors import ConflictError, RequestError
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin import backups
from plainsql_server.operations.archive_parts import End, PieceReader
from plainsql_server.operations.backup import DATABASE, DIRECTORY
from plainsql_server.operations.programs import find_program, run, running
from plainsql_server.operations.progress import Progress
from plainsql_server.operations.schemas import OPTIONS, finish_schema, grant, renamed


@dataclass(frozen=True, slots=True)
class Heeding:
    """How long a replaced database can be brought back, and how long a node may take to learn of the new one."""

    restore_s: float
    heeded_s: float


class _Pieces:
    """The pieces of a backup, read in another thread, one ahead."""

    def __init__(self, reader: PieceReader) -> None:
        self.manifest = reader.manifest
        self._reader = reader
        self._iterator: Iterator[tuple[str, bytes]] = reader.pieces()
        self._ahead: tuple[str, bytes] | None = None
        self.read_bytes = 0

    async def of(self, part: str) -> AsyncIterator[bytes]:
        """The pieces of a part, if it is what comes next."""
        while (piece := await self._look()) is not None and piece[0] == part:
            self._ahead = None
            yield piece[1]

    async def end(self) -> End:
        """That the backup is whole. Raises RequestError if it is not."""
        surplus = await self._look()
        if surplus is not None or self._reader.end is None:
            raise RequestError("backup_damaged", "The backup has parts that do not belong there.")
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
    replaces: bool,
    heeding: Heeding,
) -> DatabaseRecord:
    """The database of that name with a backup's content: a new one, or if it `replaces`, one that is there.

    Raises ConflictError if the name is taken, or with `replaces` if it is not; RequestError if the backup is not whole
    or cannot be restored. Then, and when it is cancelled, everything is as it was.
    """
    pieces = _Pieces(await _open(source, DATABASE))
    target = await get_by_name(directory, organization_id, name) if replaces else None
    if target is not None and target.state not in drafts.REPLACEABLE:
        raise ConflictError("wrong_state", f"The database {name!r} is {target.state}.")
    async with drafts.draft(directory, organization_id, name, replaces=replaces) as made:
        end = await _fill(await cell_of(directory, made), made, pieces, progress)
        progress.step("the change of places" if target else "the last step")
        if target is None:
            return await drafts.adopt(directory, made, plain=end.plain)
        return await drafts.replace(
            directory, made, target, plain=end.plain, restore_s=heeding.restore_s, heeded_s=heeding.heeded_s
        )


async def restore_directory(directory: Directory, dsn: str, source: BinaryIO, progress: Progress) -> None:
    """Fills an empty database with a backup of the directory: all of it or nothing.

    Raises ConflictError if the database is not empty, RequestError if the backup is not whole.
    """
    pieces = _Pieces(await _open(source, DIRECTORY))
    async with directory.connection() as connection:
        tables = "SELECT FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LIMIT 1"
        if (await connection.execute(tables)).rowcount:
            raise ConflictError(
                "directory_not_empty",
                "The database that PLAINSQL_DIRECTORY_DSN names is not empty.",
                hint="Create an empty one, and name that.",
            )
        major = connection.info.server_version // 10_000
    program = find_program("pg_restore", max(major, pieces.manifest.dumped_by_major))
    progress.step("data", pieces.manifest.tables_bytes)
    conninfo = make_conninfo(dsn, application_name=backups.RESTORE)
    await _feed(program, (*OPTIONS, "--single-transaction"), conninfo, pieces, progress, whole=True)


async def _open(source: BinaryIO, kind: str) -> PieceReader:
    reader = await asyncio.to_thread(PieceReader, source)
    if reader.manifest.kind != kind:
        raise RequestError("wrong_backup", f"This is a backup of a {reader.manifest.kind}, not of a {kind}.")
    return reader


async def _fill(cell: CellRecord, made: DatabaseRecord, pieces: _Pieces, progress: Progress) -> End:
    """Restores into a draft. When it returns, everything is there and the backup was whole."""
    owner = backups.owners_conninfo(cell.conninfo, made.engine_name, made.owner_role, backups.RESTORE)
    # Nobody else is there to be serializable with.
    conninfo = make_conninfo(owner, options="-c default_transaction_isolation=read\\ committed")
    admin = (cell.conninfo, cell.admin_role, made.engine_name)
    await backups.forget_default_privileges(*admin, made.owner_role, made.reader_role)
    program = find_program("pg_restore", pieces.manifest.dumped_by_major)
    async with backups.attended(*admin):
        with tempfile.TemporaryDirectory(prefix="plainsql-restore-") as folder:
            schema = Path(folder) / "schema"
            progress.step("schema")
            await _save_schema(pieces, made, schema)
            await run(program, (*OPTIONS, "--section=pre-data", str(schema)), conninfo)
            progress.step("data", pieces.manifest.tables_bytes)
            await _feed(program, OPTIONS, conninfo, pieces, progress)
            progress.step("records")
            for table in backups.RECORDS:
                await backups.fill_records(*admin, table, pieces.of(table))
            end = await pieces.end()
            await finish_schema(program, schema, conninfo, progress)
            progress.step("rights")
            await grant(program, schema, conninfo)
        progress.step("statistics")
        await backups.analyze(owner)
    return end


async def _save_schema(pieces: _Pieces, made: DatabaseRecord, file: Path) -> None:
    """Writes the schema's archive down, with the new database's roles in the place of the old one's."""
    with file.open("wb") as stream:
        async for piece in pieces.of("schema"):
            stream.write(piece)
    old = pieces.manifest
    file.write_bytes(renamed(file.read_bytes(), (old.owner_role, old.reader_role), made))


async def _feed(
    program: Path,
    options: tuple[str, ...],
    conninfo: str,
    pieces: _Pieces,
    progress: Progress,
    *,
    whole: bool = False,
) -> None:
    """Restores the part `data`. If it must be `whole`, its last piece is withheld until the checksum was right."""
    async with running(program, options, conninfo, takes_input=True) as process:
        assert process.stdin is not None
        held = b""
        async for piece in pieces.of("data"):
            process.stdin.write(held)
            await process.stdin.drain()
            held = piece
            progress.at(pieces.read_bytes)
        if whole:
            await pieces.end()
        process.stdin.write(held)
        await process.stdin.drain()
