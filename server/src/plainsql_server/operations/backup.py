"""Backs up a customer's database or the directory.

    await backup_database(directory, database, output, progress)

A customer's database is dumped as its owner role, never as a superuser, so hostile code in it can do no more than the
customer can. The login is a role of its own, which the customer can't terminate. The request records
(`engine/execution/records.py`) are copied from the same snapshot: after a restore, a request that ran before the
snapshot must not run again, and a later one must.
"""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from psycopg.conninfo import make_conninfo

from plainsql_server.control_plane.databases import cell_of
from plainsql_server.core.clock import now
from plainsql_server.core.errors import ConflictError
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.engine.admin.backups import BACKUP, RECORDS, Frozen, backup_conninfo, frozen
from plainsql_server.operations.archive_parts import CHUNK_BYTES, ArchiveWriter, Manifest
from plainsql_server.operations.programs import find_program, major_of, running
from plainsql_server.operations.progress import Progress, TablesDumped

DATABASE, DIRECTORY = "database", "directory"

# In any other state, a database is incomplete.
DUMPABLE = frozenset([DatabaseState.READY, DatabaseState.SUSPENDED])
# How long pg_dump waits for a customer's table lock. Statements queued behind it wait as long.
_LOCK_WAIT = "--lock-wait-timeout=20s"
# No compression here: operators compress the whole file, and progress is measured by the bytes written.
_FORMAT = ("--format=custom", "--compress=0")
TENANT = (*_FORMAT, _LOCK_WAIT, "--exclude-schema=plainsql", "--no-subscriptions")
_SECTIONS = {"schema": ("--section=pre-data", "--section=post-data"), "data": ("--section=data", "--verbose")}

_DIRECTORY_TABLES = """
    SELECT n.nspname || '.' || c.relname AS name, pg_table_size(c.oid) AS size
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname = 'public'
"""


async def backup_database(directory: Directory, database: DatabaseRecord, output: BinaryIO, progress: Progress) -> None:
    """Write a backup of a database as of one point in time. If it is cancelled, the output is incomplete.

    Raises ConflictError if the database is not ready, EngineError if its cell is unavailable, and RequestError if it
    can't be dumped; the message says why.
    """
    if database.state not in DUMPABLE:
        raise ConflictError("wrong_state", f"The database {database.name!r} is {database.state}.")
    writer = await _write(await cell_of(directory, database), database, output, progress)
    # Read after the dump: a database without code now had none before, either.
    current = await stored.find_by_id(directory, database.id)
    await asyncio.to_thread(writer.finish, without_code=current is not None and current.without_code)


async def backup_content(cell: CellRecord, database: DatabaseRecord, output: BinaryIO, progress: Progress) -> None:
    """Write a backup of what a database is on a cluster of our own, where nobody writes, whatever its state is now."""
    writer = await _write(cell, database, output, progress, is_ours=True)
    await asyncio.to_thread(writer.finish, without_code=False)


async def _write(
    cell: CellRecord, database: DatabaseRecord, output: BinaryIO, progress: Progress, *, is_ours: bool = False
) -> ArchiveWriter:
    conninfo = backup_conninfo(cell.conninfo, database.engine_name, database.owner_role)
    progress.step("safe snapshot")
    place = (cell.conninfo, cell.admin_role, database.engine_name, database.owner_role)
    async with frozen(*place, is_ours=is_ours) as source:
        version = source.connection.info.server_version
        program = find_program("pg_dump", version // 10_000)
        dumped = TablesDumped(source.tables)
        manifest = Manifest(
            kind=DATABASE, name=database.name, database_id=database.id, organization_id=database.organization_id,
            taken_at=now().isoformat(), server_version=str(version), dumped_by_major=major_of(program),
            owner_role=database.owner_role, reader_role=database.reader_role, tables_bytes=dumped.total,
            is_serial=source.is_serial,
        )  # fmt: skip
        writer = ArchiveWriter(output, manifest)
        shared = [*TENANT, f"--role={database.owner_role}", f"--snapshot={source.snapshot}"]
        for part, section in _SECTIONS.items():
            progress.step(part, dumped.total if part == "data" else None)
            options = [*shared, *section]
            await _dump(program, options, conninfo, writer=writer, part=part, dumped=dumped, progress=progress)
        progress.step("records")
        await _copy_records(source, writer)
    return writer


async def backup_directory(directory: Directory, dsn: str, output: BinaryIO, progress: Progress) -> None:
    """Write a backup of the directory. It holds the hashes of keys and the secrets of records: protect it as such."""
    async with directory.connection() as connection:
        rows = await (await connection.execute(_DIRECTORY_TABLES)).fetchall()
        version = connection.info.server_version
    program = find_program("pg_dump", version // 10_000)
    dumped = TablesDumped({row["name"]: row["size"] for row in rows})
    manifest = Manifest(
        kind=DIRECTORY, name="directory", taken_at=now().isoformat(), server_version=str(version),
        dumped_by_major=major_of(program), tables_bytes=dumped.total,
    )  # fmt: skip
    writer = ArchiveWriter(output, manifest)
    progress.step("data", dumped.total)
    conninfo = make_conninfo(dsn, application_name=BACKUP)
    options = [*_FORMAT, _LOCK_WAIT, "--verbose"]
    await _dump(program, options, conninfo, writer=writer, part="data", dumped=dumped, progress=progress)
    await asyncio.to_thread(writer.finish)


async def _dump(
    program: Path,
    options: list[str],
    conninfo: str,
    *,
    writer: ArchiveWriter,
    part: str,
    dumped: TablesDumped,
    progress: Progress,
) -> None:
    async with running(program, options, conninfo, hear=dumped.hear) as process:
        async for chunk in _chunks(process):
            # Writing may block, and must not block the event loop.
            await asyncio.to_thread(writer.write, part, chunk)
            if part == "data":
                progress.at(dumped.wrote(len(chunk)))


async def _chunks(process: Process) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while True:
        try:
            yield await process.stdout.readexactly(CHUNK_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial
            return


async def _copy_records(source: Frozen, writer: ArchiveWriter) -> None:
    for table in RECORDS:
        async for chunk in _joined(source.records(table)):
            await asyncio.to_thread(writer.write, table, chunk)


async def _joined(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Regroup the bytes into parts of equal size: a record can be longer than a part, and most are far shorter."""
    held = bytearray()
    async for block in blocks:
        held += block
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)
