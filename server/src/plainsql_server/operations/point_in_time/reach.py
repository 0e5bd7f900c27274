"""Which moments an archive reaches: from its oldest backup to the newest file of WAL in it.

    reach = await archive_reach(archive)
    reach.check_start(point)

PostgreSQL decides whether a moment is reached: it must find a later transaction. This asks pgBackRest, before anything
is restored, and refuses what can't be reached.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.operations.point_in_time.child_process import last_line
from plainsql_server.operations.point_in_time.pgbackrest import Archive, run_pgbackrest

# pgBackRest stores times in whole seconds, and restores a backup for moments after the second in which it ended.
_SECOND = timedelta(seconds=1)
_REASON_LENGTH = 300
# The folder of a file of WAL in the archive is the start of its name.
_FOLDER_LENGTH, _NAME_LENGTH = 16, 24
# A name begins with the timeline.
_TIMELINE_LENGTH = 8
_FOLDER, _FILE = re.compile(r"[0-9A-F]{16}\Z"), re.compile(r"[0-9A-F]{24}-")


@dataclass(frozen=True, slots=True)
class Reach:
    """The moments that an archive reaches."""

    first: datetime
    last: datetime | None
    """When the newest file of WAL was archived: it has nothing later. None if there is no such file."""

    def check_start(self, point: datetime) -> None:
        """Raises RequestError for a moment in the future, and for one before the archive's oldest backup ended."""
        if point > now():
            raise RequestError("invalid_time", f"That moment is in the future. {self}")
        if point < self.first:
            raise RequestError("archive_too_short", f"That moment is before the archive's oldest backup. {self}")

    def check_end(self, point: datetime) -> None:
        """Raises RequestError for a moment that is later than all that is archived."""
        if self.last is None or point >= self.last + _SECOND:
            raise RequestError(
                "archive_too_short", f"That moment is later than what is archived. {self}",
                hint="Wait until the cell has archived what it wrote since, or choose an earlier moment.",
            )  # fmt: skip

    def __str__(self) -> str:
        if self.last is None or self.last < self.first:
            return f"The archive begins at {_shown(self.first)}."
        return f"The archive reaches from {_shown(self.first)} to {_shown(self.last)}."


@dataclass(frozen=True, slots=True)
class LastBackup:
    """The newest backup in an archive."""

    label: str
    ended_at: datetime
    has_damage: bool
    """Whether pgBackRest found pages whose checksum is wrong."""


@dataclass(frozen=True, slots=True)
class BaseBackup:
    """The backup from which a moment is restored."""

    label: str
    repository: int
    began_at: datetime
    databases: Mapping[str, int]
    """The OIDs of the databases in it that were not made by PostgreSQL itself, by their names."""


async def last_backup(archive: Archive) -> LastBackup | None:
    """Ask pgBackRest for the newest backup; None if there is none. Raises RequestError if it can't read the archive."""
    backups = [backup for stanza in await _asked(archive, "info") for backup in stanza.get("backup", [])]
    if not backups:
        return None
    newest = max(backups, key=lambda backup: int(backup["timestamp"]["stop"]))
    ended_at = datetime.fromtimestamp(newest["timestamp"]["stop"], UTC)
    return LastBackup(newest["label"], ended_at, bool(newest.get("error")))


async def base_backup(archive: Archive, point: datetime | None) -> BaseBackup:
    """Ask pgBackRest for the newest backup, or that before the moment. Raises RequestError if there is none."""
    found = await _asked(archive, "info")
    backups = [backup for stanza in found for backup in stanza.get("backup", [])]
    if not backups:
        raise _no_backup(found)
    ended = [
        backup for backup in backups
        if point is None or datetime.fromtimestamp(backup["timestamp"]["stop"], UTC) + _SECOND <= point
    ]  # fmt: skip
    if not ended:
        raise RequestError("archive_too_short", "That moment is before the archive's oldest backup.")
    newest = max(ended, key=lambda backup: int(backup["timestamp"]["stop"]))
    label, repository = newest["label"], newest["database"]["repo-key"]
    (stanza,) = await _asked(archive, "info", f"--set={label}", f"--repo={repository}")
    (shown,) = stanza["backup"]
    databases = {each["name"]: each["oid"] for each in shown.get("database-ref") or []}
    databases.pop(MAINTENANCE_DATABASE, None)
    return BaseBackup(label, repository, datetime.fromtimestamp(shown["timestamp"]["start"], UTC), databases)


async def archive_reach(archive: Archive) -> Reach:
    """Ask pgBackRest. Raises RequestError if it can't read the archive, or if that has no backup."""
    found = await _asked(archive, "info")
    backups = [backup for stanza in found for backup in stanza.get("backup", [])]
    if not backups:
        raise _no_backup(found)
    first = datetime.fromtimestamp(min(backup["timestamp"]["stop"] for backup in backups), UTC) + _SECOND
    stored = [each for stanza in found for each in stanza.get("archive", []) if each.get("max")]
    return Reach(first, max(filter(None, [await _archived_at(archive, each) for each in stored]), default=None))


async def file_archived_after(archive: Archive, point: datetime) -> str | None:
    """The name of the first file of WAL that was archived after the moment, or of the newest one; None if none is."""
    stored = await _series(archive)
    if not stored:
        return None
    root, repository = f"archive/{archive.stanza}/{stored[-1]['id']}", stored[-1]["database"]["repo-key"]
    listed = await _asked(archive, "repo-ls", root, f"--repo={repository}")
    folders = sorted(name for name in listed if _FOLDER.match(name))

    async def files_of(folder: str) -> list[tuple[str, datetime]]:
        found = await _asked(archive, "repo-ls", f"{root}/{folder}", f"--repo={repository}")
        files = {name[:_NAME_LENGTH]: each["time"] for name, each in found.items() if _FILE.match(name)}
        return [(name, datetime.fromtimestamp(at, UTC)) for name, at in sorted(files.items())]

    # A folder has 4 GB of WAL, and an archive has many. Find the first one that begins after the moment.
    low, high = 0, len(folders)
    while low < high:
        middle = (low + high) // 2
        if any(at < point for _, at in (await files_of(folders[middle]))[:1]):
            low = middle + 1
        else:
            high = middle
    near = [file for folder in folders[max(0, low - 1) : low + 1] for file in await files_of(folder)]
    later = [name for name, at in near if at + _SECOND > point]
    return later[0] if later else stored[-1]["max"]


async def archived_among(archive: Archive, names: Collection[str]) -> set[str]:
    """Which of these files of WAL are in the archive. Raises RequestError if it can't be read."""
    folders = {name[:_FOLDER_LENGTH] for name in names}
    found = set()
    for stanza in await _asked(archive, "info") if names else []:
        for stored in stanza.get("archive", []):
            root, repository = f"archive/{archive.stanza}/{stored['id']}", stored["database"]["repo-key"]
            for folder in sorted(folders & set(await _asked(archive, "repo-ls", root, f"--repo={repository}"))):
                listed = await _asked(archive, "repo-ls", f"{root}/{folder}", f"--repo={repository}")
                found |= {name[:_NAME_LENGTH] for name in listed if _FILE.match(name)}
    return found & set(names)


async def archived_from(archive: Archive, place: str) -> list[str]:
    """The names of the files of WAL in the archive from this place on, which is a name without its timeline."""
    stored = await _series(archive)
    if not stored:
        return []
    root, repository = f"archive/{archive.stanza}/{stored[-1]['id']}", f"--repo={stored[-1]['database']['repo-key']}"
    names: list[str] = []
    for folder in await _asked(archive, "repo-ls", root, repository):
        if _FOLDER.match(folder) and folder[_TIMELINE_LENGTH:] >= place[:_TIMELINE_LENGTH]:
            listed = await _asked(archive, "repo-ls", f"{root}/{folder}", repository)
            names += [name[:_NAME_LENGTH] for name in listed if _FILE.match(name)]
    return sorted(name for name in names if name[_TIMELINE_LENGTH:] >= place)


async def oldest_file(archive: Archive) -> str:
    """The name of the oldest file of WAL in the archive; empty if there is none."""
    stored = await _series(archive)
    return str(stored[-1]["min"]) if stored else ""


async def newest_file(archive: Archive) -> str | None:
    """The name of the newest file of WAL in the archive."""
    stored = await _series(archive)
    return str(stored[-1]["max"]) if stored else None


async def has_file(archive: Archive, position: str) -> bool:
    """Whether the archive has a file of WAL with that name, without its timeline, on any timeline."""
    stored = await _series(archive)
    if not stored:
        return False
    root, repository = f"archive/{archive.stanza}/{stored[-1]['id']}", f"--repo={stored[-1]['database']['repo-key']}"
    part, file = position[: _FOLDER_LENGTH // 2], position[_FOLDER_LENGTH // 2 :]
    for folder in await _asked(archive, "repo-ls", root, repository):
        if _FOLDER.match(folder) and folder.endswith(part):
            name = f"^{folder}{file}-"
            if await _asked(archive, "repo-ls", f"{root}/{folder}", f"--filter={name}", repository):
                return True
    return False


async def _series(archive: Archive) -> list[dict[str, Any]]:
    """The series of files of WAL that the archive has, one for each major version."""
    return [each for stanza in await _asked(archive, "info") for each in stanza.get("archive", []) if each.get("max")]


async def _archived_at(archive: Archive, stored: dict[str, Any]) -> datetime | None:
    """When the newest file of WAL was archived. There are several series of files if PostgreSQL was upgraded."""
    newest, repository = stored["max"], stored["database"]["repo-key"]
    folder = f"archive/{archive.stanza}/{stored['id']}/{newest[:_FOLDER_LENGTH]}"
    files = await _asked(archive, "repo-ls", folder, f"--filter=^{newest}-", f"--repo={repository}")
    times = [datetime.fromtimestamp(file["time"], UTC) for file in files.values()]
    return max(times, default=None)


def _no_backup(stanzas: Any) -> RequestError:
    # If it can't read a repository, pgBackRest says why there alone, in several lines.
    messages = [each["status"]["message"] for stanza in stanzas for each in (stanza, *stanza.get("repo", []))]
    reasons = dict.fromkeys(" ".join(message.split())[:_REASON_LENGTH] for message in messages)
    return RequestError("archive_failed", f"The archive has no backup: {', '.join(reasons) or 'no stanza'}.")


async def _asked(archive: Archive, *arguments: str) -> Any:
    done = await run_pgbackrest(archive, *arguments, "--output=json")
    if not done.succeeded:
        raise RequestError("archive_failed", f"pgBackRest can't read the archive: {last_line(done.errors)}")
    # It does not escape the line breaks in its messages.
    return json.loads(done.output, strict=False)


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
