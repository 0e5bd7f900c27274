"""The WAL that pg_receivewal has received from a cell: what of it the archive lacks, where it ends, what can go.

    files = await place_received(folder, archive, data / "pg_wal", check_space)
    end = await received_end(folder)
    archived, failed = await archive_received(folder, archive, data)
    await prune_received(folder, archive)

A cluster that replays its archive asks for each file of WAL there first, and then looks into its own `pg_wal`. So what
was received and is not archived belongs there.
"""

import re
import tempfile
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.point_in_time.child_process import identity, last_line
from plainsql_server.operations.point_in_time.pgbackrest import Archive, run_pgbackrest
from plainsql_server.operations.point_in_time.reach import archived_among, oldest_file
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
    size_bytes: int
    written_s: float
    """When something was received into it last, in seconds since 1970."""

    @property
    def timeline(self) -> int:
        return int(self.name[:8], 16)

    def is_followed_by(self, other: "ReceivedFile") -> bool:
        """Whether the other one is the next file of the same timeline."""
        next_ = file_name(self.timeline, start_of(self.name, self.size_bytes) + self.size_bytes, self.size_bytes)
        return other.name == next_


@dataclass(frozen=True, slots=True)
class ReceivedEnd:
    """The end of what was received: where its last record begins, and when something was received last."""

    timeline: int
    last_record: int
    newest_complete: str | None
    at: datetime


def received_files(folder: Path) -> list[ReceivedFile]:
    """The files of WAL in a folder, by name. A complete file comes in place of its unfinished form."""
    found: dict[str, ReceivedFile] = {}
    for path in sorted(folder.iterdir(), reverse=True):
        match = _FILE.match(path.name)
        # Meanwhile, one may have become complete, or been deleted.
        with suppress(FileNotFoundError):
            # One that was just begun may not have its length yet, and has no record.
            if match and (about := path.stat()).st_size > 0:
                found[match[1]] = ReceivedFile(match[1], path, match[2] is None, about.st_size, about.st_mtime)
    return [found[name] for name in sorted(found)]


async def place_received(
    folder: Path, archive: Archive, pg_wal: Path, check_space: Callable[[int], None]
) -> list[ReceivedFile]:
    """Copy what the archive lacks to `pg_wal` of a cluster that does not run yet. Return these files.

    `check_space` gets their size in bytes before anything is copied, and raises RequestError if there is no room.
    """
    files = received_files(folder)
    archived = await archived_among(archive, [file.name for file in files])
    missing = [file for file in files if file.name not in archived]
    check_space(sum(file.size_bytes for file in missing))
    for file in missing:
        # Meanwhile, one may have become complete, or been deleted because the archive has it now.
        for path in (file.path, folder / file.name):
            if await _copied(path, pg_wal / file.name):
                break
    for path in folder.iterdir():
        if _HISTORY.match(path.name):
            await _copied(path, pg_wal / path.name)
    return missing


async def archive_received(folder: Path, archive: Archive, data: Path) -> tuple[list[str], list[str]]:
    """Archive the complete files that the archive lacks. Return their names, and those that could not be archived.

    Only when a restored cluster is known to have replayed all of them, so that the archive gets no gap. `data` is its
    data folder. PostgreSQL itself would not archive them: what it has replayed, it takes for archived.
    """
    oldest = await oldest_file(archive)
    # What is older than the archive was in it, and has expired.
    complete = [file for file in received_files(folder) if file.is_complete and file.name[8:] > oldest[8:]]
    archived = await archived_among(archive, [file.name for file in complete])
    missing, failed = [file for file in complete if file.name not in archived], []
    for file in missing:
        done = await run_pgbackrest(archive, f"--pg1-path={data}", "archive-push", str(file.path.resolve()))
        if not done.succeeded:
            failed.append(file.name)
    return [file.name for file in missing if file.name not in failed], failed


async def _copied(source: Path, target: Path) -> bool:
    """Copy a file, as the user `postgres`, who owns the folder and may have put anything there. False: it is gone."""
    process = await create_subprocess_exec(
        "cp", "--", source, target, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, cwd="/", env=program_environment(),
        umask=0o077, **identity(),
    )  # fmt: skip
    _, errors = await process.communicate()
    if process.returncode == 0:
        return True
    if not source.exists():
        return False
    raise RequestError("archive_failed", f"What was received can't be copied: {last_line(errors.decode())}")


async def received_end(folder: Path) -> ReceivedEnd | None:
    """Where the received WAL ends. None if nothing was received."""
    files = received_files(folder)
    if not files:
        return None
    newest, before = files[-1], files[-2] if len(files) > 1 else None
    complete = [file.name for file in files if file.is_complete]
    if not newest.is_complete and before is not None and before.is_followed_by(newest):
        # The newest one may have been just begun, and have no record.
        record = await _last_record([before, newest])
    else:
        # What comes after a gap counts, too: it shows that there is one.
        record = await _last_record([newest])
    at = datetime.fromtimestamp(max(file.written_s for file in files), UTC)
    return ReceivedEnd(newest.timeline, record, complete[-1] if complete else None, at)


async def _last_record(files: list[ReceivedFile]) -> int:
    """The position of the last whole record in consecutive files, as pg_waldump reads them."""
    first = files[0]
    start = start_of(first.name, first.size_bytes)
    with tempfile.TemporaryDirectory() as linked:
        Path(linked).chmod(0o755)
        for file in files:
            (Path(linked) / file.name).symlink_to(file.path.resolve())
        process = await create_subprocess_exec(
            find_program("pg_waldump", _OLDEST_MAJOR), f"--path={linked}", f"--timeline={first.timeline}",
            f"--start={shown_position(start)}", stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=program_environment(),
            **identity(),
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


def place_of(position: int, file_bytes: int) -> str:
    """The name of the file of WAL with this position, without the timeline, which it begins with."""
    return f"{position // _FOUR_GB:08X}{position % _FOUR_GB // file_bytes:08X}"


def file_name(timeline: int, position: int, file_bytes: int) -> str:
    """The name of the file of WAL with this position."""
    return f"{timeline:08X}{place_of(position, file_bytes)}"


def parsed_position(text: str) -> int:
    """A position in the WAL as PostgreSQL shows it, in bytes."""
    high, _, low = text.partition("/")
    return int(high, 16) * _FOUR_GB + int(low, 16)


def shown_position(position: int) -> str:
    return f"{position // _FOUR_GB:X}/{position % _FOUR_GB:X}"
