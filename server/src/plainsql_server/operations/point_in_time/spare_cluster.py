"""A spare cluster: a cell as it was at a moment, restored by pgBackRest from its archive, beside the cell.

    async with spare_cluster_at(archive, "d_…", "plainsql_admin", point, parent=folder, progress=progress) as spare:
        ... spare.conninfo ...

It has its own folder (`spare_folder.py`) and a socket in it that no other user can reach, archives nothing, and belongs
to this process: if that dies, the kernel ends the cluster, and pgBackRest. A folder that such a death leaves behind is
removed by the next one. It ends when too little of the disk is free (`free_space.py`). Only the wanted database, and
what it may be copied from (`copied_from.py`), have content at first: the files of the others are empty.
"""

import asyncio
import re
import signal
import threading
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError, described
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.operations.files.cell import with_bounded_memory
from plainsql_server.operations.files.sizing import PREPARED_TRANSACTIONS
from plainsql_server.operations.point_in_time.child_process import (
    dying_with_this_process,
    end,
    identity,
    last_line,
)
from plainsql_server.operations.point_in_time.damage import damaged_files
from plainsql_server.operations.point_in_time.free_space import (
    FREE_RATIO,
    check_space_for_received,
    check_space_for_wal,
    keeping_free,
)
from plainsql_server.operations.point_in_time.gaps import missing_file
from plainsql_server.operations.point_in_time.pgbackrest import Archive, run_pgbackrest
from plainsql_server.operations.point_in_time.reach import base_backup
from plainsql_server.operations.point_in_time.received import place_received, received_end
from plainsql_server.operations.point_in_time.replay import Replay, planned_replay
from plainsql_server.operations.point_in_time.replay_end import ReplayEnd, check_reached, replay_of
from plainsql_server.operations.point_in_time.spare_folder import SpareFolder, remove_abandoned, spare_folder
from plainsql_server.operations.programs import find_program, program_environment
from plainsql_server.operations.progress import Progress

_PORT = 5432
_LOOK_EVERY_S = 0.1
_CONNECT_S = 60
_SHOWN = 3
# The last part of the log, which says why the server has ended.
_TAIL_BYTES = 65_536
_USUAL_SEGMENT_BYTES = 16 * 1024 * 1024
# Without a handler, these end a process at once.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

# Every cell has it, from before its first backup. A database that is younger than the backup comes from the WAL alone,
# but pgBackRest excludes others only if it is given one to include.
_ALWAYS_THERE = "plainsql_template"
_NEW_TABLESPACE = 'could not create symbolic link "pg_tblspc/'
_UNREACHED = "recovery ended before configured recovery target was reached"
# What pg_ctl waits for, too: the line of postmaster.pid that says whether the server accepts connections.
_STATUS_LINE, _READY = 7, "ready"
_LAST_COMMIT = re.compile(r"last completed transaction was at log time (.+)$", re.MULTILINE)

# Where the cluster's own files say other things, the command line is stronger. It is used once and then removed, so it
# need not survive a crash. Pages of the databases that were left out are empty, and the WAL may change them. PostgreSQL
# warns of each, so that damage to the database itself is found.
_SETTINGS = {
    "listen_addresses": "", "archive_mode": "off", "ignore_invalid_pages": "on", "hot_standby": "off",
    "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "synchronous_standby_names": "",
    "autovacuum": "off", "ssl": "off", "shared_buffers": "128MB", "huge_pages": "off", "max_worker_processes": "0",
    "jit": "off",
    "shared_preload_libraries": "", "session_preload_libraries": "", "logging_collector": "off",
    "log_min_messages": "warning", "log_min_error_statement": "panic", "log_error_verbosity": "terse",
    "primary_conninfo": "", "primary_slot_name": "", "archive_cleanup_command": "", "recovery_end_command": "",
    "lc_messages": "C", "max_wal_size": "4GB", "dynamic_shared_memory_type": "mmap",
    "log_startup_progress_interval": "200ms",
}  # fmt: skip

# Settings that decide how many locks there are and how many transactions can be prepared: what pg_controldata calls
# them, and the least.
_SIZES = {
    "max_connections": ("max_connections", 20),
    "max_prepared_transactions": ("max_prepared_xacts", PREPARED_TRANSACTIONS),
    "max_locks_per_transaction": ("max_locks_per_xact", 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpareCluster:
    """A running spare cluster."""

    conninfo: str
    last_commit_at: datetime | None
    """When the last transaction that it has was committed; None if its WAL has none."""
    replay: ReplayEnd
    """How far it has replayed the WAL."""
    received_until: datetime | None = None
    """When something was received last, if it has all that was received."""


@asynccontextmanager
async def spare_cluster_at(
    archive: Archive, engine_name: str, admin_role: str, point: datetime | None, *, sources: Collection[str] = (),
    parent: Path, free_ratio: float = FREE_RATIO, progress: Progress,
) -> AsyncIterator[SpareCluster]:  # fmt: skip
    """A cluster as it was at the moment, for the length of the block; `parent` is the folder for its files.

    Without a moment, it has all that was archived, or received. `sources` are other databases whose content is needed.
    Raises RequestError if pgBackRest can't restore it, if the archive does not reach to the moment, if the database is
    damaged, or, at any time during the block, if less than `free_ratio` of the disk is free.
    """
    remove_abandoned(parent)
    with ending_in_order(), spare_folder(parent) as folder:
        restored = _restored(
            archive, engine_name, admin_role, point, folder, sources=sources, free_ratio=free_ratio, progress=progress
        )
        async with keeping_free(parent, free_ratio), restored as spare:
            yield spare


@asynccontextmanager
async def _restored(
    archive: Archive, engine_name: str, admin_role: str, point: datetime | None, folder: SpareFolder, *,
    sources: Collection[str], free_ratio: float, progress: Progress,
) -> AsyncIterator[SpareCluster]:  # fmt: skip
    progress.step("restore the cell's files")
    oids = await _restore_files(archive, {engine_name, *sources}, point, folder)
    received = None

    def check_room(size_bytes: int) -> None:
        check_space_for_received(folder.path, size_bytes, free_ratio)

    if archive.received is not None:
        # In this order: the cell may be alive, and more is received meanwhile.
        received = await received_end(archive.received)
        await place_received(archive.received, archive, folder.data / "pg_wal", check_room)
    shown = await _control_data(folder)
    replay = await planned_replay(archive, point or now(), folder, _segment_bytes(shown))
    check_space_for_wal(folder.path, replay.total_bytes, free_ratio)
    progress.step("replay", replay.total_bytes)
    async with _running(folder, _sizes(shown)) as process:
        try:
            await _wait_until_ready(process, replay, folder, progress)
        except RequestError as error:
            await _check_whole(archive, folder, _segment_bytes(shown), error)
            raise
        if point is None:
            # PostgreSQL takes a gap for the end.
            await _check_whole(archive, folder, _segment_bytes(shown))
        conninfo = f"host={folder.cluster} port={_PORT}"
        spare, found = await _described(conninfo, admin_role, engine_name)
        await _check_undamaged(folder, oids | found)
        if received is not None and point is None:
            check_reached(spare.replay, received)
            spare = replace(spare, received_until=received.at)
        yield spare


@contextmanager
def ending_in_order(*, hint: str | None = None) -> Iterator[None]:
    """Cancels this task on the first signal that would end the process, so that nothing is left behind.

    Raises RequestError with the hint then. Within another such block, it does nothing.
    """
    task, loop, received = asyncio.current_task(), asyncio.get_running_loop(), list[signal.Signals]()
    assert task is not None

    def end(number: signal.Signals) -> None:
        if not received:
            received.append(number)
            task.cancel()

    # `nohup` ignores one of them, and others have a handler. Only the main thread can have handlers.
    is_main = threading.current_thread() is threading.main_thread()
    handled = [each for each in _ENDING_SIGNALS if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        loop.add_signal_handler(each, end, each)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        raise RequestError("restore_ended", f"Ended by {received[0].name}.", hint=hint) from None
    finally:
        for each in handled:
            loop.remove_signal_handler(each)


async def _restore_files(archive: Archive, wanted: set[str], point: datetime | None, folder: SpareFolder) -> set[int]:
    """Restores a backup. Returns the OIDs of those of the wanted databases that it has."""
    backup = await base_backup(archive, point)
    included = sorted(wanted & backup.databases.keys())
    target = ["--type=default"]
    if point is not None:
        at = f"{point.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f+00}"
        target = ["--type=time", f"--target={at}", "--target-action=promote"]
    done = await run_pgbackrest(
        archive, "restore", f"--pg1-path={folder.data}", f"--lock-path={folder.cluster / 'lock-path'}",
        f"--log-path={folder.cluster}", f"--set={backup.label}", f"--repo={backup.repository}",
        *(f"--db-include={name}" for name in included or [_ALWAYS_THERE]), *target, "--archive-mode=off",
        # An operator's own configuration may say otherwise, and would let it write outside the folder: into the
        # cell's own tablespaces, for one.
        "--no-delta", "--no-link-all", "--reset-link-map", "--reset-tablespace-map",
        f"--tablespace-map-all={folder.cluster / 'tablespaces'}", inherited=(folder.lock,),
    )  # fmt: skip
    if not done.succeeded:
        raise RequestError("archive_failed", f"pgBackRest can't restore the cell: {last_line(done.errors)}")
    # A tablespace that is younger than the backup is made by replaying the WAL, where the cell has its own, and the
    # replay would write to the cell's files. So recovery must fail instead.
    folder.allow_tablespaces(False)
    return {backup.databases[name] for name in included}


@asynccontextmanager
async def _running(folder: SpareFolder, sizes: Mapping[str, str]) -> AsyncIterator[Process]:
    """The cluster's postmaster, which ends with this process."""
    files = {
        "config_file": folder.write("postgresql.conf", ""),
        # Only this user and root can enter the folder of the socket.
        "hba_file": folder.write("pg_hba.conf", "local all all trust\n"),
        "ident_file": folder.write("pg_ident.conf", ""),
    }
    settings = {
        **_SETTINGS, **sizes, **files, "data_directory": folder.data, "unix_socket_directories": folder.cluster,
        "port": _PORT,
    }  # fmt: skip
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = with_bounded_memory([_server_of(folder), *options])
    with folder.opened_log() as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=log, stderr=STDOUT, cwd="/", env=program_environment(),
            pass_fds=(folder.lock,), preexec_fn=dying_with_this_process(signal.SIGQUIT), **identity(),
        )  # fmt: skip
    try:
        yield process
    finally:
        await end(process, signal.SIGQUIT)


async def _control_data(folder: SpareFolder) -> str:
    """What pg_controldata shows of a cluster. It reads as the user that the cluster belongs to."""
    process = await asyncio.create_subprocess_exec(
        _server_of(folder).with_name("pg_controldata"), folder.data, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd="/",
        env=program_environment() | {"LC_ALL": "C"}, preexec_fn=dying_with_this_process(signal.SIGKILL), **identity(),
    )  # fmt: skip
    try:
        output, errors = await process.communicate()
    finally:
        await end(process, signal.SIGKILL)
    if process.returncode != 0:
        raise RequestError("archive_failed", f"The restored cell has no state: {last_line(errors.decode())}")
    return output.decode()


def _sizes(shown: str) -> dict[str, str]:
    """What the cell had when it was backed up, or more: what the dump of a database needs there, it gets here."""
    found = dict(re.findall(r"^(\w+) setting: +(\d+)$", shown, re.MULTILINE))
    return {name: str(max(least, int(found.get(shown_as, 0)))) for name, (shown_as, least) in _SIZES.items()}


def _segment_bytes(shown: str) -> int:
    """How long the cell's files of WAL are."""
    found = re.search(r"^Bytes per WAL segment: +(\d+)$", shown, re.MULTILINE)
    return int(found[1]) if found else _USUAL_SEGMENT_BYTES


def _server_of(folder: SpareFolder) -> Path:
    return find_server(int(folder.read("PG_VERSION")))


def find_server(major: int) -> Path:
    """The server program of exactly this major version."""
    found = find_program("postgres", major)
    if f"/{major}/" not in str(found) and found.parent.parent.name == str(major):
        raise RequestError("program_missing", f"PostgreSQL {major} is not installed on this machine.")
    return found


async def _wait_until_ready(process: Process, replay: Replay, folder: SpareFolder, progress: Progress) -> None:
    """Waits until the WAL is replayed. Raises RequestError if the server ends instead."""
    while not _is_ready(folder):
        progress.at(replay.done_bytes())
        if process.returncode is not None:
            raise _ended(folder.log)
        await asyncio.sleep(_LOOK_EVERY_S)
    progress.at(replay.done_bytes())


def _is_ready(folder: SpareFolder) -> bool:
    try:
        lines = folder.read("postmaster.pid").splitlines()
    except OSError:
        return False
    return len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == _READY


def _ended(log: Path) -> RequestError:
    """Why the server has ended."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        output = file.read().decode(errors="replace")
    if _UNREACHED in output:
        last = _LAST_COMMIT.search(output)
        return RequestError(
            "archive_too_short",
            "The archive does not reach to that moment. Its last transaction is of"
            f" {last[1] if last else 'an earlier time'}.",
            hint="Wait until the cell has archived what it wrote since, or choose an earlier moment.",
        )  # fmt: skip
    if _NEW_TABLESPACE in output:
        return RequestError(
            "archive_failed", "The cell got a tablespace between its backup and that moment.",
            hint="Choose a moment after the next backup, or one before the tablespace.",
        )  # fmt: skip
    return RequestError("archive_failed", f"The spare cluster did not start: {last_line(output)}")


async def _check_whole(
    archive: Archive, folder: SpareFolder, segment_bytes: int, cause: RequestError | None = None
) -> None:
    """Raises RequestError if the replay ended at a file that the archive lacks, although it has later ones."""
    log = folder.log.read_text(errors="replace")
    missing = await missing_file(archive, folder, log, segment_bytes)
    if missing is None:
        return
    last = _LAST_COMMIT.search(log)
    raise RequestError(
        "archive_failed",
        f"The archive lacks the file {missing} of the WAL, and has later ones. The last transaction before it is of"
        f" {last[1] if last else 'the time of the backup'}.",
        hint="Choose an earlier moment, or bring the file back from a copy of the archive. Then make a full backup.",
    ) from cause


async def _described(conninfo: str, admin_role: str, engine_name: str) -> tuple[SpareCluster, set[int]]:
    """The cluster, and the OID of the database, if there is one. Raises RequestError if the role can't log in."""
    dsn = f"{conninfo} user={admin_role} dbname={MAINTENANCE_DATABASE}"
    found = """
        SELECT pg_last_xact_replay_timestamp(), (SELECT oid FROM pg_database WHERE datname = %s)
    """
    try:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, connect_timeout=_CONNECT_S
        ) as connection:
            last, oid = await (await connection.execute(found, (engine_name,))).fetchone() or (None, None)
    except psycopg.Error as error:
        raise RequestError("archive_failed", f"The spare cluster can't be used: {described(error)}") from error
    return SpareCluster(conninfo, last, await replay_of(dsn)), {oid} - {None}


async def _check_undamaged(folder: SpareFolder, oids: set[int]) -> None:
    """Raises RequestError if the WAL changed pages of the databases that the backup does not have."""
    damaged = await asyncio.to_thread(damaged_files, folder.log, oids)
    if damaged:
        shown = ", ".join(f"{pages} of {file}" for file, pages in list(damaged.items())[:_SHOWN])
        more = f", and {len(damaged) - _SHOWN} more files" if len(damaged) > _SHOWN else ""
        raise RequestError(
            "archive_failed",
            "The database is damaged in the archive: the WAL changes pages that its backup does not have."
            f" Pages of the cell's files: {shown}{more}.",
            hint="Choose a moment before that backup began, or restore a file of `backup`. Then make a full backup.",
        )  # fmt: skip
