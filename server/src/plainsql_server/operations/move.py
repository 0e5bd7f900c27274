"""Moves a database to another cell while it is in use: copy, apply changes, hold requests briefly, switch.

    moved = await move_database(directory, database, "eu-2", progress)

The copy is made like a backup, by pg_dump and pg_restore as the customer's role (`operations/backup.py`), from one
snapshot. Later changes are applied in rounds, each shorter than the one before, and the last round runs while requests
are held. A schema change can't be applied: then the move starts over. `control_plane/moves.py` decides where the
database is.
"""

import math
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from plainsql_server.control_plane import moves
from plainsql_server.control_plane.databases import cell_of, get
from plainsql_server.core.errors import ConflictError, EngineError, InternalError, RequestError, described
from plainsql_server.directory import moves as stored_moves
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.moves import MoveRecord
from plainsql_server.engine.admin import backups, change_apply
from plainsql_server.engine.admin.change_apply import Copy, follow
from plainsql_server.engine.admin.snapshot import Pair, Snapshot, connected, fingerprint_of, now_in
from plainsql_server.operations.archive_parts import CHUNK_BYTES
from plainsql_server.operations.backup import TENANT
from plainsql_server.operations.programs import find_program, run, running
from plainsql_server.operations.progress import Progress, TablesDumped
from plainsql_server.operations.schemas import OPTIONS, finish_schema, grant, renamed

# Rounds become shorter until they take as long as reading every row does. Another round pays off while the last one was
# not short and was clearly shorter than the one before.
_SHORT_ROUND_S = 0.25
_NO_SHORTER = 0.7
# How often a move is attempted if the schema changes or requests can't be held.
_ATTEMPTS = 3
# Name of the admin's connections. While they are open, the reaper spares the long transactions of the customer's role.
_KEEPER = backups.MOVE + backups.KEEPER


class _BeginAnew(Exception):
    """The copy is useless and the move must start over; the message says why."""


@dataclass(slots=True)
class Moved:
    """Statistics of a move."""

    copied_bytes: int = 0
    followed_rows: int = 0
    rounds: int = 0
    attempts: int = 0
    stopped_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ends:
    """Source and target of a move."""

    directory: Directory
    move: MoveRecord
    database: DatabaseRecord
    copy: DatabaseRecord
    old: CellRecord
    new: CellRecord

    def owner(self, *, of_copy: bool) -> str:
        """Return the connection string for pg_dump or pg_restore. The copy has no other users to serialize with."""
        cell, database = (self.new, self.copy) if of_copy else (self.old, self.database)
        conninfo = backups.owners_conninfo(cell.conninfo, database.engine_name, database.owner_role, backups.MOVE)
        return (
            make_conninfo(conninfo, options="-c default_transaction_isolation=read\\ committed")
            if of_copy
            else conninfo
        )

    @asynccontextmanager
    async def original(self) -> AsyncIterator[Pair]:
        name = self.database.engine_name
        async with (
            connected(self.old.conninfo, self.old.admin_role, name, _KEEPER) as admin,
            connected(self.old.conninfo, self.database.owner_role, name) as owner,
        ):
            yield Pair(admin, owner)

    @asynccontextmanager
    async def opened_copy(self) -> AsyncIterator[Copy]:
        """Open the copy for writing. Its triggers stay disabled until just before the switch."""
        name, roles = self.copy.engine_name, {self.database.reader_role: self.copy.reader_role}
        async with connected(self.new.conninfo, self.new.admin_role, name, _KEEPER) as admin:
            await change_apply.set_triggers_enabled(admin, self.copy.owner_role, name, enabled=False)
            async with connected(self.new.conninfo, self.copy.owner_role, name) as owner:
                yield Copy(owner, admin, roles)


async def move_database(
    directory: Directory, database: DatabaseRecord, to: str, progress: Progress, *, hold: bool = False
) -> Moved:
    """Move a database to the cell named `to`. If the move fails or is cancelled, the database stays where it was.

    With `hold`, requests wait for the whole move. Raises what `moves.choose` and `moves.check_extensions` raise,
    RequestError if the database can't be dumped or restored, and ConflictError if its schema keeps changing or another
    operation changes the database.
    """
    moved = Moved()
    while True:
        moved.attempts += 1
        cell = await moves.choose(directory, database, to)
        await moves.check_extensions(directory, database, cell)
        try:
            async with moves.begun(directory, database, cell) as (move, copy):
                ends = _Ends(directory, move, database, copy, await cell_of(directory, database), cell)
                if hold:
                    await stored_moves.stop(directory, move.id, moves.ALIVE_S)
                await _carry_out(ends, progress, moved)
                return moved
        except _BeginAnew as reason:
            if moved.attempts == _ATTEMPTS:
                raise ConflictError(
                    "move_overtaken", f"The database {database.name!r} kept changing and was not moved.",
                    hint="Try again later, or use --hold.", internal_context=f"Last attempt: {reason}.",
                ) from reason  # fmt: skip
        database = await get(directory, database.id)


async def _carry_out(ends: _Ends, progress: Progress, moved: Moved) -> None:
    async with ends.original() as one, _own_folder() as folder:
        await backups.check_dumpable(one.admin)
        earlier = await now_in(one)
        late_rights = await change_apply.lacks_privileges(earlier)
        async with (
            backups.attended(ends.new.conninfo, ends.new.admin_role, ends.copy.engine_name, backups.MOVE),
            _unless_definitions_change(ends, earlier),
        ):
            await _fill(ends, earlier, folder / "schema", progress, late_rights=late_rights, moved=moved)
        async with ends.original() as other, ends.opened_copy() as copy:
            await change_apply.copy_own(earlier, copy)
            await change_apply.set_always_triggers_enabled(earlier, copy, enabled=False)
            await backups.analyze(ends.owner(of_copy=True))
            progress.step("changes")
            earlier, spare = await _catch_up(earlier, other, copy, moved)
            progress.step("switch")
            rights = folder / "schema" if late_rights else None
            moved.stopped_s = await _switch(ends, earlier, spare, copy, rights=rights, moved=moved)


async def _catch_up(earlier: Snapshot, spare: Pair, copy: Copy, moved: Moved) -> tuple[Snapshot, Pair]:
    """Apply changes until few are left. Returns the last snapshot applied, and the connections without a snapshot."""
    took_s, before_s = math.inf, math.inf
    while took_s > _SHORT_ROUND_S and (took_s == math.inf or took_s < _NO_SHORTER * before_s):
        began_s, before_s = time.monotonic(), took_s
        later = await now_in(spare)
        await _follow(earlier, later, copy, moved)
        await earlier.end()
        earlier, spare = later, earlier.pair
        took_s = time.monotonic() - began_s
    return earlier, spare


async def _switch(
    ends: _Ends, earlier: Snapshot, spare: Pair, copy: Copy, *, rights: Path | None, moved: Moved
) -> float:
    """Hold requests, apply the last changes and switch to the copy. Returns how many seconds requests waited."""
    spared = [*earlier.pair.pids, *spare.pids]
    began_s = time.monotonic()
    try:
        async with moves.stopped(ends.directory, ends.move, ends.database, spared):
            later = await now_in(spare)
            await _follow(earlier, later, copy, moved)
            await change_apply.set_sequences(later, copy)
            await change_apply.set_always_triggers_enabled(later, copy, enabled=True)
            if rights is not None:
                program = find_program("pg_restore", spare.admin.info.server_version // 10_000)
                await grant(program, rights, ends.owner(of_copy=True), ends.copy)
            await change_apply.set_triggers_enabled(
                copy.admin, ends.copy.owner_role, ends.copy.engine_name, enabled=True
            )
            # This session started with triggers disabled, so it must never serve a customer.
            await copy.owner.close()
            await moves.finish(ends.directory, ends.move, ends.database, ends.copy)
            return time.monotonic() - began_s
    except EngineError as error:
        if error.code == "database_busy":
            raise _BeginAnew(error.message) from error
        raise


async def _follow(earlier: Snapshot, later: Snapshot, copy: Copy, moved: Moved) -> None:
    if earlier.fingerprint != later.fingerprint:
        raise _BeginAnew("the schema changed")
    try:
        moved.followed_rows += await follow(earlier, later, copy)
    except (psycopg.Error, InternalError) as error:
        # Most likely something changed between two snapshots. If not, the next attempt fails the same way.
        raise _BeginAnew(described(error)) from error
    moved.rounds += 1


async def _fill(
    ends: _Ends, earlier: Snapshot, schema: Path, progress: Progress, *, late_rights: bool, moved: Moved
) -> None:
    """Fill the copy with everything in the snapshot, except the service's own tables."""
    major = earlier.pair.admin.info.server_version // 10_000
    dump, restore = find_program("pg_dump", major), find_program("pg_restore", major)
    source, target = ends.owner(of_copy=False), ends.owner(of_copy=True)
    await backups.forget_default_privileges(
        ends.new.conninfo, ends.new.admin_role, ends.copy.engine_name, ends.copy.owner_role, ends.copy.reader_role
    )
    progress.step("schema")
    snapshot = (*TENANT, f"--snapshot={earlier.snapshot}")
    archive = await run(dump, (*snapshot, "--section=pre-data", "--section=post-data"), source)
    schema.write_bytes(renamed(archive, (ends.database.owner_role, ends.database.reader_role), ends.copy))
    await run(restore, (*OPTIONS, "--section=pre-data", str(schema)), target)
    sizes = {f"{table.schema}.{table.name}": table.size_bytes for table in earlier.tables.values() if not table.is_ours}
    dumped = TablesDumped(sizes)
    moved.copied_bytes = dumped.total
    progress.step("data", dumped.total)
    await _pour((dump, (*snapshot, "--section=data", "--verbose"), source), (restore, target), dumped, progress)
    await finish_schema(restore, schema, target, progress)
    if not late_rights:
        progress.step("privileges")
        await grant(restore, schema, target, ends.copy)


@asynccontextmanager
async def _unless_definitions_change(ends: _Ends, earlier: Snapshot) -> AsyncIterator[None]:
    """Start over if the dump fails because the schema changed under it."""
    try:
        yield
    except RequestError as error:
        name = ends.database.engine_name
        async with connected(ends.old.conninfo, ends.old.admin_role, name, _KEEPER) as admin:
            if await fingerprint_of(admin) != earlier.fingerprint:
                raise _BeginAnew(f"the schema changed: {error.message}") from error
        raise


async def _pour(
    from_: tuple[Path, tuple[str, ...], str], to: tuple[Path, str], dumped: TablesDumped, progress: Progress
) -> None:
    """Restore rows as they are dumped. Raises RequestError with the first error of either program."""
    dump, options, source = from_
    restore, target = to
    last_words = ""

    def hear(line: str) -> None:
        nonlocal last_words
        last_words = line
        dumped.hear(line)

    async with (
        running(dump, options, source, hear=hear) as dumping,
        running(restore, OPTIONS, target, takes_input=True) as restoring,
    ):
        assert dumping.stdout is not None
        assert restoring.stdin is not None
        while chunk := await dumping.stdout.read(CHUNK_BYTES):
            restoring.stdin.write(chunk)
            await restoring.stdin.drain()
            progress.at(dumped.wrote(len(chunk)))
        if await dumping.wait():
            raise RequestError("dump_failed", f"pg_dump failed: {last_words}")


@asynccontextmanager
async def _own_folder() -> AsyncIterator[Path]:
    """Make a temporary folder for the schema. Rows are never written to this machine's disk."""
    with tempfile.TemporaryDirectory(prefix="plainsql-move-") as folder:
        yield Path(folder)
