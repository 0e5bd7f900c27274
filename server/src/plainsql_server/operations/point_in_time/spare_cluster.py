"""A spare cluster: a cell as it was at a moment, restored by pgBackRest from its archive, beside the cell.

    async with spare_cluster_at(archive, "d_…", "plainsql_admin", point, parent=folder, progress=progress) as spare:
        ... spare.conninfo ...

It has its own folder and a socket in it that no other user can reach, archives nothing, and belongs to this process:
if that dies, the kernel ends the cluster, and pgBackRest. A folder that such a death leaves behind is removed by the
next one, when the last process that writes to it has ended: they all hold its lock. Only the wanted database has its
content; the files of the others are empty.
"""

import asyncio
import fcntl
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.operations.files.cell import with_bounded_memory
from plainsql_server.operations.files.sizing import PREPARED_TRANSACTIONS
from plainsql_server.operations.point_in_time.child_process import (
    SYSTEM_USER,
    dying_with_this_process,
    end,
    identity,
    last_line,
)
from plainsql_server.operations.point_in_time.pgbackrest import Archive, run_pgbackrest
from plainsql_server.operations.point_in_time.replay import Replay, planned_replay
from plainsql_server.operations.programs import find_program, program_environment, run
from plainsql_server.operations.progress import Progress

_PREFIX = "plainsql-spare-"
_PORT = 5432
# The path of a socket has at most 107 bytes; PostgreSQL adds a name.
_SOCKET_FOLDER_LONGEST = 107 - len("/.s.PGSQL.5432.lock")
_END_S = 10.0
_LOOK_EVERY_S = 0.1
_USUAL_SEGMENT_BYTES = 16 * 1024 * 1024
# Without a handler, these end a process at once.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

# Every cell has it, from before its first backup. A database that is younger than the backup comes from the WAL alone,
# but pgBackRest excludes others only if it is given one to include.
_ALWAYS_THERE = "plainsql_template"
_NOT_IN_BACKUP = ("unable to find", "database to include")
_NEW_TABLESPACE = 'could not create symbolic link "pg_tblspc/'
_UNREACHED = "recovery ended before configured recovery target was reached"
_LAST_COMMIT = re.compile(r"last completed transaction was at log time (.+)$", re.MULTILINE)

# Where the cluster's own files say other things, the command line is stronger. It is used once and then removed, so it
# need not survive a crash. Pages of the databases that were left out are empty, and the WAL may change them.
_SETTINGS = {
    "listen_addresses": "", "archive_mode": "off", "ignore_invalid_pages": "on", "hot_standby": "off",
    "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "synchronous_standby_names": "",
    "autovacuum": "off", "ssl": "off", "shared_buffers": "128MB", "huge_pages": "off", "max_worker_processes": "0",
    "jit": "off",
    "shared_preload_libraries": "", "session_preload_libraries": "", "logging_collector": "off",
    "log_min_messages": "log", "log_min_error_statement": "panic", "log_error_verbosity": "terse",
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


@asynccontextmanager
async def spare_cluster_at(
    archive: Archive, engine_name: str, admin_role: str, point: datetime, *, parent: Path, progress: Progress
) -> AsyncIterator[SpareCluster]:
    """A cluster as it was at the moment, for the length of the block; `parent` is the folder for its files.

    Raises RequestError if pgBackRest can't restore it, or if the archive does not reach to the moment.
    """
    remove_abandoned(parent)
    with _ending_in_order(), _own_folder(parent) as (folder, lock):
        progress.step("restore the cell's files")
        await _restore_files(archive, engine_name, point, folder, lock)
        shown = await _control_data(folder / "data")
        replay = await planned_replay(archive, point, folder / "data", folder / "log", _segment_bytes(shown))
        progress.step("replay", replay.total_bytes)
        async with _running(folder, lock, _sizes(shown)) as process:
            conninfo = f"host={folder} port={_PORT}"
            dsn = f"{conninfo} user={admin_role} dbname={MAINTENANCE_DATABASE}"
            await _wait_until_open(process, replay, dsn, progress)
            yield await _described(conninfo, admin_role)


def remove_abandoned(parent: Path) -> None:
    """Removes the folders of spare clusters whose processes have all ended."""
    ours = {os.geteuid(), identity().get("user", os.geteuid())}
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            # Other users of the machine can make folders and links here, too.
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_uid in ours and _has_name(lock, folder):
                _remove_tree(folder)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


@contextmanager
def _own_folder(parent: Path) -> Iterator[tuple[Path, int]]:
    """A new folder, and the descriptor that has its lock. The folder is removed at the end, and unlocked then."""
    folder, lock = _locked_folder(parent)
    try:
        if len(os.fsencode(folder)) > _SOCKET_FOLDER_LONGEST:
            raise RequestError("invalid_folder", f"The path {parent} is too long for PostgreSQL's socket. Use another.")
        (folder / "data").mkdir(mode=0o700)
        for path in (folder, folder / "data"):
            if os.geteuid() == 0:
                shutil.chown(path, SYSTEM_USER)
        yield folder, lock
    finally:
        _remove(folder)
        os.close(lock)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have found it without a lock, and removed it.
        if _has_name(lock, folder):
            return folder, lock
        os.close(lock)


def _has_name(descriptor: int, folder: Path) -> bool:
    """Whether a folder that was opened exists, and has this name."""
    opened = os.fstat(descriptor)
    try:
        return opened.st_nlink > 0 and os.path.samestat(opened, folder.lstat())
    except FileNotFoundError:
        return False


def _remove_tree(folder: Path) -> None:
    with suppress(OSError):
        (folder / "data/pg_tblspc").chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Removes a folder. If its postmaster was killed, backends may be making files in it for a moment."""
    end_s = time.monotonic() + _END_S
    _remove_tree(folder)
    while folder.exists() and time.monotonic() < end_s:
        time.sleep(_LOOK_EVERY_S)
        _remove_tree(folder)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Cancels this task on the first signal that would end the process, so that nothing is left behind."""
    task, loop, received = asyncio.current_task(), asyncio.get_running_loop(), list[signal.Signals]()
    assert task is not None

    def end(number: signal.Signals) -> None:
        if not received:
            received.append(number)
            task.cancel()

    # `nohup` ignores one of them. Only the main thread can have handlers.
    is_main = threading.current_thread() is threading.main_thread()
    handled = [each for each in _ENDING_SIGNALS if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        loop.add_signal_handler(each, end, each)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        raise RequestError("restore_ended", f"Ended by {received[0].name}.") from None
    finally:
        for each in handled:
            loop.remove_signal_handler(each)


async def _restore_files(archive: Archive, engine_name: str, point: datetime, folder: Path, lock: int) -> None:
    errors = ""
    for included in (engine_name, _ALWAYS_THERE):
        done = await run_pgbackrest(
            archive, "restore", f"--pg1-path={folder / 'data'}", f"--lock-path={folder / 'lock-path'}",
            f"--log-path={folder}", f"--db-include={included}", "--type=time",
            f"--target={point.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f+00}", "--target-action=promote",
            "--archive-mode=off",
            # An operator's own configuration may say otherwise, and would let it write outside the folder: into the
            # cell's own tablespaces, for one.
            "--no-delta", "--no-link-all", "--reset-link-map", "--reset-tablespace-map",
            f"--tablespace-map-all={folder / 'tablespaces'}", inherited=(lock,),
        )  # fmt: skip
        if done.succeeded:
            # A tablespace that is younger than the backup is made by replaying the WAL, where the cell has its own, and
            # the replay would write to the cell's files. So recovery must fail instead.
            (folder / "data/pg_tblspc").chmod(0o500)
            return
        errors = done.errors
        if not any(part in errors for part in _NOT_IN_BACKUP):
            break
    raise RequestError("archive_failed", f"pgBackRest can't restore the cell: {last_line(errors)}")


@asynccontextmanager
async def _running(folder: Path, lock: int, sizes: Mapping[str, str]) -> AsyncIterator[Process]:
    """The cluster's postmaster, which ends with this process."""
    data = folder / "data"
    files = {"config_file": folder / "postgresql.conf", "hba_file": folder / "pg_hba.conf",
             "ident_file": folder / "pg_ident.conf", "data_directory": data}  # fmt: skip
    files["config_file"].write_text("")
    # Only this user and root can enter the folder.
    files["hba_file"].write_text("local all all trust\n")
    files["ident_file"].write_text("")
    settings = {**_SETTINGS, **sizes, **files, "unix_socket_directories": folder, "port": _PORT}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = with_bounded_memory([_server_of(data), *options])
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=log, stderr=STDOUT, cwd="/", env=program_environment(),
            pass_fds=(lock,), preexec_fn=dying_with_this_process(signal.SIGQUIT), **identity(),
        )  # fmt: skip
    try:
        yield process
    finally:
        await end(process, signal.SIGQUIT)


async def _control_data(data: Path) -> str:
    """What pg_controldata shows of a cluster."""
    return (await run(_server_of(data).with_name("pg_controldata"), [str(data)], None)).decode()


def _sizes(shown: str) -> dict[str, str]:
    """What the cell had when it was backed up, or more: what the dump of a database needs there, it gets here."""
    found = dict(re.findall(r"^(\w+) setting: +(\d+)$", shown, re.MULTILINE))
    return {name: str(max(least, int(found.get(shown_as, 0)))) for name, (shown_as, least) in _SIZES.items()}


def _segment_bytes(shown: str) -> int:
    """How long the cell's files of WAL are."""
    found = re.search(r"^Bytes per WAL segment: +(\d+)$", shown, re.MULTILINE)
    return int(found[1]) if found else _USUAL_SEGMENT_BYTES


def _server_of(data: Path) -> Path:
    return find_server(int((data / "PG_VERSION").read_text()))


def find_server(major: int) -> Path:
    """The server program of exactly this major version."""
    found = find_program("postgres", major)
    if f"/{major}/" not in str(found) and found.parent.parent.name == str(major):
        raise RequestError("program_missing", f"PostgreSQL {major} is not installed on this machine.")
    return found


async def _wait_until_open(process: Process, replay: Replay, conninfo: str, progress: Progress) -> None:
    while True:
        progress.at(replay.done_bytes())
        if process.returncode is not None:
            log = replay.log.read_text(errors="replace")
            if _UNREACHED in log:
                last = _LAST_COMMIT.search(log)
                raise RequestError(
                    "archive_too_short",
                    "The archive does not reach to that moment. Its last transaction is of"
                    f" {last[1] if last else 'an earlier time'}.",
                    hint="Wait until the cell has archived what it wrote since, or choose an earlier moment.",
                )  # fmt: skip
            if _NEW_TABLESPACE in log:
                raise RequestError(
                    "archive_failed", "The cell got a tablespace between its backup and that moment.",
                    hint="Choose a moment after the next backup, or one before the tablespace.",
                )  # fmt: skip
            raise RequestError("archive_failed", f"The spare cluster did not start: {last_line(log)}")
        try:
            async with await psycopg.AsyncConnection.connect(conninfo, connect_timeout=5) as connection:
                found = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone()
                if found == (False,):
                    progress.at(replay.done_bytes())
                    return
        except psycopg.OperationalError:
            # It still replays the WAL.
            pass
        await asyncio.sleep(_LOOK_EVERY_S)


async def _described(conninfo: str, admin_role: str) -> SpareCluster:
    dsn = f"{conninfo} user={admin_role} dbname={MAINTENANCE_DATABASE}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        last = await (await connection.execute("SELECT pg_last_xact_replay_timestamp()")).fetchone()
    return SpareCluster(conninfo, last[0] if last else None)
