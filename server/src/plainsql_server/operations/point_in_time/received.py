"""The WAL that pg_receivewal has received from a cell: what of it the archive lacks, where it ends, what can go.

    await place_received(folder, archive, data / "pg_wal")
    end = await received_end(folder)
    await prune_received(folder, archive)

A cluster that replays its archive asks for each file of WAL there first, and then looks into its own `pg_wal`. So what
was received and is not archived belongs there. When the cluster is open, it archives these files itself.
"""

import os
import re
import shutil
import tempfile
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import archived_among
from plainsql_server.operations.programs import find_program, program_environment

_FILE = re.compile(r"([0-9A-F]{24})([.]partial)?\Z")
_HISTORY = re.compile(r"[0-9A-F]{8}[.]history\Z")
_RECORD = re.compile(rb"lsn: ([0-9A-F]+)/([0-9A-F]+),")
_OLDEST_MAJOR = 15
# With larger files of WAL, a cluster has fewer of them for each 4 GB.
_FOUR_GB = 1 << 32


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file of WAL. The one that is being received is not complete, and has its full length."""

    name: str
    path: Path
    is_complete: bool

    @property
    def timeline(self) -> int:
        return int(self.name[:8], 16)


@dataclass(frozen=True, slots=True)
class ReceivedEnd:
    """The end of what was received: where its last record begins, and when something was received last."""

    last_record: int
    newest_complete: str | None
    at: datetime


def received_files(folder: Path) -> list[ReceivedFile]:
    """The files of WAL in a folder, by name. A complete file comes in place of its unfinished form."""
    found: dict[str, ReceivedFile] = {}
    for path in sorted(folder.iterdir(), reverse=True):
        match = _FILE.match(path.name)
        # One that was just begun may not have its length yet, and has no record.
        if match and path.stat().st_size > 0:
            found[match[1]] = ReceivedFile(match[1], path, match[2] is None)
    return [found[name] for name in sorted(found)]


async def place_received(folder: Path, archive: Archive, pg_wal: Path) -> list[str]:
    """Copy what the archive lacks to `pg_wal` of a cluster that does not run yet. Return the names of these files."""
    files = received_files(folder)
    archived = await archived_among(archive, [file.name for file in files])
    missing = [file for file in files if file.name not in archived]
    for file in missing:
        _copy(file.path, pg_wal / file.name)
    for path in folder.iterdir():
        if _HISTORY.match(path.name):
            _copy(path, pg_wal / path.name)
    return [file.name for file in missing]


def _copy(source: Path, target: Path) -> None:
    """Copy a file, for the owner of the folder."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    if os.geteuid() == 0:
        owner = target.parent.stat()
        os.chown(target, owner.st_uid, owner.st_gid)


async def received_end(folder: Path) -> ReceivedEnd | None:
    """Where the received WAL ends. None if nothing was received."""
    files = received_files(folder)
    complete = [file for file in files if file.is_complete]
    last = files[files.index(complete[-1]) :] if complete else files[:1]
    if not last:
        return None
    with tempfile.TemporaryDirectory() as linked:
        for file in last:
            (Path(linked) / file.name).symlink_to(file.path.resolve())
        record = await _last_record(Path(linked), last[0])
    at = datetime.fromtimestamp(max(file.path.stat().st_mtime for file in last), UTC)
    return ReceivedEnd(record, complete[-1].name if complete else None, at)


def check_reached(end: ReceivedEnd, replayed: int) -> None:
    """Raise RequestError if a replay ended, at this position, before the last record that was received."""
    if replayed <= end.last_record:
        raise RequestError(
            "archive_too_short",
            f"The WAL was replayed up to {shown_position(replayed)}; what was received has a record at"
            f" {shown_position(end.last_record)}. Something between the two is missing or damaged.",
            hint="Restore again. PostgreSQL's log and `pgbackrest verify` say which file it is.",
        )  # fmt: skip


async def _last_record(folder: Path, first: ReceivedFile) -> int:
    """The position of the last whole record in consecutive files from the first on, as pg_waldump reads them."""
    start = start_of(first.name, first.path.stat().st_size)
    process = await create_subprocess_exec(
        find_program("pg_waldump", _OLDEST_MAJOR), f"--path={folder}", f"--timeline={first.timeline}",
        f"--start={shown_position(start)}", stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=program_environment(),
    )  # fmt: skip
    # It fails where the WAL ends.
    output, errors = await process.communicate()
    found = _RECORD.findall(output[output.rfind(b"\n", 0, -1) + 1 :]) if output else []
    if not found:
        raise RequestError(
            "archive_failed", f"What was received can't be read: {errors.decode(errors='replace').strip()}"
        )
    return parsed_position("/".join(part.decode() for part in found[-1]))


async def prune_received(folder: Path, archive: Archive) -> list[str]:
    """Delete complete files that the archive has, except the newest. Return their names.

    The newest tells the receiver where to go on, and a restore what it must reach.
    """
    complete = [file for file in received_files(folder) if file.is_complete][:-1]
    archived = await archived_among(archive, [file.name for file in complete])
    done = [file for file in complete if file.name in archived]
    for file in done:
        file.path.unlink()
    return [file.name for file in done]


def start_of(name: str, file_bytes: int) -> int:
    """The position at which a file of WAL begins."""
    return int(name[8:16], 16) * _FOUR_GB + int(name[16:24], 16) * file_bytes


def parsed_position(text: str) -> int:
    """A position in the WAL as PostgreSQL shows it, in bytes."""
    high, _, low = text.partition("/")
    return int(high, 16) * _FOUR_GB + int(low, 16)


def shown_position(position: int) -> str:
    return f"{position // _FOUR_GB:X}/{position % _FOUR_GB:X}"
