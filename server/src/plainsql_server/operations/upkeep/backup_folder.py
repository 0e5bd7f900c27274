"""A folder of scheduled backups: one sub-folder for each database, named by its id, and one for the directory.

    with BackupFolder(path).locked() as folder:
        with folder.new_file("db_…", now()) as stream:
            ...
        folder.prune(existing, keep_days=14, at=now())

A file gets its final name, `20261118T021500Z-3f9a1c.backup`, once it is complete and on disk. Its time is that of the
name, so copying files does not change what is kept.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from plainsql_server.core.errors import ConflictError, RequestError
from plainsql_server.core.names import DATABASE_ID
from plainsql_server.directory.upkeep.backup_record import DIRECTORY

_NAME = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{6}\.backup\Z")
_TIME = "%Y%m%dT%H%M%SZ"
_DRAFT = ".part"
_LOCK = ".lock"


class BackupFolder:
    """Backups of all databases, in files that only their owner can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator["BackupFolder"]:
        """Hold the folder's lock during the block. Raises ConflictError if another run holds it."""
        descriptor = os.open(self.path / _LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConflictError("backups_running", f"Another run is writing backups to {self.path}.") from error
            self._remove_drafts()
            yield self
        finally:
            os.close(descriptor)

    def targets(self) -> list[str]:
        """The databases with a sub-folder, and the directory."""
        return sorted(each.name for each in self.path.iterdir() if each.is_dir() and _is_target(each.name))

    def backups(self, target: str) -> list[Path]:
        """The complete backups of a database, the oldest first."""
        folder = self.path / target
        return sorted(each for each in folder.iterdir() if _taken_at(each)) if folder.is_dir() else []

    @contextmanager
    def new_file(self, target: str, at: datetime) -> Iterator[BinaryIO]:
        """Yield a file that gets its name if the block succeeds, and is removed otherwise. It must not be empty."""
        folder = self.path / target
        folder.mkdir(mode=0o700, exist_ok=True)
        final = folder / f"{at.astimezone(UTC).strftime(_TIME)}-{secrets.token_hex(3)}.backup"
        draft = final.with_name(final.name + _DRAFT)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                if not os.fstat(stream.fileno()).st_size:
                    raise RequestError("backup_empty", "The backup is empty: the pipe wrote nothing.")
                os.fsync(stream.fileno())
            draft.rename(final)
            _sync_folder(folder)
        finally:
            draft.unlink(missing_ok=True)

    def prune(self, existing: Collection[str], keep_days: int, at: datetime) -> list[Path]:
        """Delete backups that are older than `keep_days`, and return them.

        The newest backup of an existing database is kept however old it is. Of a database that no longer exists,
        nothing is.
        """
        before = at - timedelta(days=keep_days)
        removed = []
        for target in self.targets():
            backups = self.backups(target)
            for file in backups[:-1] if target in existing else backups:
                taken_at = _taken_at(file)
                if taken_at is not None and taken_at < before:
                    file.unlink()
                    removed.append(file)
            folder = self.path / target
            if target not in existing and not any(folder.iterdir()):
                folder.rmdir()
        return removed

    def _remove_drafts(self) -> None:
        """Remove what a run left that was killed. The lock says that no other is writing."""
        for target in self.targets():
            for draft in (self.path / target).glob(f"*{_DRAFT}"):
                draft.unlink()


def _is_target(name: str) -> bool:
    # Anything else in the folder is not ours.
    return name == DIRECTORY or DATABASE_ID.match(name) is not None


def _taken_at(file: Path) -> datetime | None:
    match = _NAME.match(file.name)
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _sync_folder(folder: Path) -> None:
    """Write the folder to disk: until then, a power failure can undo the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
