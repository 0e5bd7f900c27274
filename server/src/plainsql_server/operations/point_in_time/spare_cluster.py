"""A spare cluster: a cell as it was at a moment, restored by pgBackRest from its archive, beside the cell.

    async with spare_cluster_at(archive, "d_…", "plainsql_admin", point, parent=folder, progress=progress) as spare:
        ... spare.conninfo ...

It has its own folder and a socket in it that no other user can reach, archives nothing, and belongs to this process:
if that dies, the kernel ends the cluster. A folder that such a death leaves behind is removed by the next one. Only the
wanted database has its content; the files of the others are empty.
"""

import asyncio
import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import stat
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.operations.files.archive import STANZA
from plainsql_server.operations.files.cell import with_bounded_memory
from plainsql_server.operations.files.sizing import PREPARED_TRANSACTIONS
from plainsql_server.operations.programs import find_program, program_environment
from plainsql_server.operations.progress import Progress

_PREFIX = "plainsql-spare-"
_PORT = 5432
# The path of a socket has at most 107 bytes; PostgreSQL adds a name.
_SOCKET_FOLDER_LONGEST = 107 - len("/.s.PGSQL.5432.lock")
# PostgreSQL refuses to run as root. On a machine with a cell, its packages have made this user.
_SYSTEM_USER = "postgres"
_END_S = 10.0
_LOOK_EVERY_S = 0.1
_LOG_KEPT = 8_000
_ERRORS = ("FATAL:", "PANIC:", "ERROR:")
_PR_SET_PDEATHSIG = 1

# Every cell has it, from before its first backup. A database that is younger than the backup comes from the WAL alone,
# but pgBackRest excludes others only if it is given one to include.
_ALWAYS_THERE = "plainsql_template"
_NOT_IN_BACKUP = ("unable to find", "database to include")
_UNREACHED = "recovery ended before configured recovery target was reached"

# Where the cluster's own files say other things, the command line is stronger. It is used once and then removed, so it
# need not survive a crash. Pages of the databases that were left out are empty, and the WAL may change them.
_SETTINGS = {
    "listen_addresses": "", "archive_mode": "off", "ignore_invalid_pages": "on", "hot_standby": "off",
    "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "synchronous_standby_names": "",
    "autovacuum": "off", "ssl": "off", "shared_buffers": "128MB", "huge_pages": "off", "max_connections": "20",
    "max_prepared_transactions": str(PREPARED_TRANSACTIONS), "max_worker_processes": "0", "jit": "off",
    "shared_preload_libraries": "", "session_preload_libraries": "", "logging_collector": "off",
    "log_min_messages": "log", "log_min_error_statement": "panic", "log_error_verbosity": "terse",
    "primary_conninfo": "", "lc_messages": "C", "max_wal_size": "4GB",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a cell: the folder of pgBackRest's configuration on this machine, and the name of the stanza."""

    config_folder: Path
    stanza: str = STANZA


@dataclass(frozen=True, slots=True)
class SpareCluster:
    """A running spare cluster."""

    conninfo: str
    last_commit_at: datetime | None
    """When the last transaction that it has was committed; None if its WAL has none."""
    spanning: tuple[str, ...]
    """Transactions over several databases that were prepared, and neither committed nor rolled back, at the moment."""


@asynccontextmanager
async def spare_cluster_at(
    archive: Archive, engine_name: str, admin_role: str, point: datetime, *, parent: Path, progress: Progress
) -> AsyncIterator[SpareCluster]:
    """A cluster as it was at the moment, for the length of the block; `parent` is the folder for its files.

    Raises RequestError if pgBackRest can't restore it, or if the archive does not reach to the moment.
    """
    remove_abandoned(parent)
    with _own_folder(parent) as folder:
        progress.step("restore the cell's files")
        await _restore_files(archive, engine_name, point, folder)
        progress.step("replay")
        async with _running(folder) as process:
            conninfo = f"host={folder} port={_PORT}"
            await _wait_until_open(process, folder, f"{conninfo} user={admin_role} dbname={MAINTENANCE_DATABASE}")
            yield await _described(conninfo, admin_role)


def remove_abandoned(parent: Path) -> None:
    """Removes the folders of spare clusters whose process has died."""
    ours = {os.geteuid(), _identity().get("user", os.geteuid())}
    for folder in parent.glob(f"{_PREFIX}*"):
        # Other users of the machine can make folders and links here, too.
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ours:
            continue
        try:
            lock = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            # It is being made.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


@contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_LONGEST:
        folder.rmdir()
        raise RequestError("invalid_folder", f"The path {parent} is too long for PostgreSQL's socket. Use another.")
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "data").mkdir(mode=0o700)
            for path in (folder, folder / "data"):
                if os.geteuid() == 0:
                    shutil.chown(path, _SYSTEM_USER)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _restore_files(archive: Archive, engine_name: str, point: datetime, folder: Path) -> None:
    output = ""
    for included in (engine_name, _ALWAYS_THERE):
        succeeded, output = await _pgbackrest(
            archive, folder, "restore", f"--db-include={included}", "--type=time",
            f"--target={point.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f+00}", "--target-action=promote",
            "--archive-mode=off",
        )  # fmt: skip
        if succeeded:
            return
        if not any(part in output for part in _NOT_IN_BACKUP):
            break
    raise RequestError("archive_failed", f"pgBackRest can't restore the cell: {_last_line(output)}")


async def _pgbackrest(archive: Archive, folder: Path, command: str, *options: str) -> tuple[bool, str]:
    program = shutil.which("pgbackrest")
    if program is None:
        raise RequestError(
            "program_missing", "pgbackrest is not installed on this machine.", hint="Run `apt install pgbackrest`."
        )
    process = await asyncio.create_subprocess_exec(
        program, f"--config-path={archive.config_folder}", f"--stanza={archive.stanza}",
        f"--pg1-path={folder / 'data'}", f"--lock-path={folder / 'lock-path'}", f"--log-path={folder}",
        "--log-level-file=off", "--log-level-console=warn", *options, command,
        stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=program_environment(), cwd="/", **_identity(),
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        await _end(process, signal.SIGTERM)
    return process.returncode == 0, output.decode(errors="replace")


@asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[Process]:
    """The cluster's postmaster, which ends with this process."""
    data = folder / "data"
    major = int((data / "PG_VERSION").read_text())
    files = {"config_file": folder / "postgresql.conf", "hba_file": folder / "pg_hba.conf",
             "ident_file": folder / "pg_ident.conf", "data_directory": data}  # fmt: skip
    files["config_file"].write_text("")
    # Only this user and root can enter the folder.
    files["hba_file"].write_text("local all all trust\n")
    files["ident_file"].write_text("")
    settings = {**_SETTINGS, **files, "unix_socket_directories": folder, "port": _PORT}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = with_bounded_memory([find_server(major), *options])
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=log, stderr=STDOUT, cwd="/", env=program_environment(),
            preexec_fn=_dying_with_this_process(), **_identity(),
        )  # fmt: skip
    try:
        yield process
    finally:
        await _end(process, signal.SIGQUIT)


def find_server(major: int) -> Path:
    """The server program of exactly this major version."""
    found = find_program("postgres", major)
    if f"/{major}/" not in str(found) and found.parent.parent.name == str(major):
        raise RequestError("program_missing", f"PostgreSQL {major} is not installed on this machine.")
    return found


async def _wait_until_open(process: Process, folder: Path, conninfo: str) -> None:
    while True:
        if process.returncode is not None:
            log = (folder / "log").read_text(errors="replace")
            if _UNREACHED in log:
                raise RequestError(
                    "archive_too_short", "The archive does not reach to that moment.",
                    hint="Wait until the cell has archived what it wrote since, or choose an earlier moment.",
                )  # fmt: skip
            raise RequestError("archive_failed", f"The spare cluster did not start: {_last_line(log)}")
        try:
            async with await psycopg.AsyncConnection.connect(conninfo, connect_timeout=5) as connection:
                found = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone()
                if found == (False,):
                    return
        except psycopg.OperationalError:
            # It still replays the WAL.
            pass
        await asyncio.sleep(_LOOK_EVERY_S)


async def _described(conninfo: str, admin_role: str) -> SpareCluster:
    dsn = f"{conninfo} user={admin_role} dbname={MAINTENANCE_DATABASE}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        last = await (await connection.execute("SELECT pg_last_xact_replay_timestamp()")).fetchone()
        prepared = await (await connection.execute("SELECT gid FROM pg_prepared_xacts ORDER BY 1")).fetchall()
    return SpareCluster(conninfo, last[0] if last else None, tuple(gid for (gid,) in prepared))


async def _end(process: Process, how: signal.Signals) -> None:
    if process.returncode is not None:
        return
    process.send_signal(how)
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _identity() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(_SYSTEM_USER)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _dying_with_this_process() -> Any:
    # Loaded before the fork, because the child should allocate as little as possible.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _last_line(output: str) -> str:
    """What a program said last, or the last of its errors."""
    lines = [line.strip() for line in output[-_LOG_KEPT:].splitlines() if line.strip()]
    errors = [line for line in lines if any(word in line for word in _ERRORS)]
    return (errors or lines or ["it said nothing"])[-1]
