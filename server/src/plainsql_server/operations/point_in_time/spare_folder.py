"""The folder of a spare cluster, which is removed at the end.

    with spare_folder(parent) as folder:
        folder.write("pg_hba.conf", "local all all trust\\n")
        ... folder.cluster, folder.data ...

What this process writes, often as root, is in the folder itself, which belongs to its user. PostgreSQL and pgBackRest
write to `pg` in it, which belongs to the user `postgres` and which no other user can enter. There, this process writes
nothing, and follows no link: a cell that was taken over could have made one to anywhere.

All processes of a spare cluster hold the folder's lock, so one that was left behind is recognized when they have ended.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.point_in_time.child_process import identity

_PREFIX = "plainsql-spare-"
_CLUSTER, _DATA, _TABLESPACES = "pg", "data", "pg_tblspc"
# The path of a socket has at most 107 bytes; PostgreSQL adds a name.
_SOCKET_FOLDER_LONGEST = 107 - len("/.s.PGSQL.5432.lock")
_END_S = 10.0
_LOOK_EVERY_S = 0.1
# The files that this process reads are shorter.
_READ_BYTES = 65_536
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# A pipe would otherwise be waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class SpareFolder:
    """The folder of a spare cluster."""

    path: Path
    lock: int
    """The descriptor that has the folder's lock."""

    @property
    def cluster(self) -> Path:
        """What belongs to the user `postgres`, with the socket."""
        return self.path / _CLUSTER

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.cluster / _DATA

    @property
    def log(self) -> Path:
        """PostgreSQL's log, which this process opens for it."""
        return self.path / "log"

    def write(self, name: str, content: str) -> Path:
        """Write a file that PostgreSQL can read and not change."""
        path = self.path / name
        with os.fdopen(os.open(path, _NEW_FILE, 0o644), "w") as file:
            file.write(content)
        return path

    @contextmanager
    def opened_log(self) -> Iterator[BinaryIO]:
        """The log, which must not exist yet, to be written."""
        with os.fdopen(os.open(self.log, _NEW_FILE, 0o600), "wb") as file:
            yield file

    def read(self, name: str) -> str:
        """The start of a file in the data folder. Raises OSError if there is none, or if it is a link."""
        with _opened(self.lock, _CLUSTER, _DATA) as data:
            descriptor = os.open(name, _FILE, dir_fd=data)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")

    def allow_tablespaces(self, is_allowed: bool) -> None:
        """Whether PostgreSQL can make tablespaces. Raises OSError if their folder is a link."""
        with _opened(self.lock, _CLUSTER, _DATA, _TABLESPACES) as tablespaces:
            os.fchmod(tablespaces, 0o700 if is_allowed else 0o500)


@contextmanager
def spare_folder(parent: Path) -> Iterator[SpareFolder]:
    """A new folder in `parent`, for the length of the block. Raises RequestError if its path is too long."""
    folder = _locked(parent)
    try:
        if len(os.fsencode(folder.cluster)) > _SOCKET_FOLDER_LONGEST:
            raise RequestError("invalid_folder", f"The path {parent} is too long for PostgreSQL's socket. Use another.")
        for path in (folder.cluster, folder.data):
            path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            owner = identity()
            # As soon as it owns the outer one, it can replace the inner one.
            for path in (folder.data, folder.cluster):
                os.chown(path, owner["user"], owner["group"], follow_symlinks=False)
            os.fchmod(folder.lock, 0o711)
        yield folder
    finally:
        _remove(folder)
        os.close(folder.lock)


def remove_abandoned(parent: Path) -> None:
    """Removes the folders of spare clusters whose processes have all ended."""
    # Those of older versions belong to the user `postgres`.
    ours = {os.geteuid(), identity().get("user", os.geteuid())}
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            # Other users of the machine can make folders and links here, too.
            lock = os.open(path, _FOLDER)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_uid in ours and _has_name(lock, path):
                _remove_tree(SpareFolder(path, lock))
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _locked(parent: Path) -> SpareFolder:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = os.open(path, _FOLDER)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have found it without a lock, and removed it.
        if _has_name(lock, path):
            return SpareFolder(path, lock)
        os.close(lock)


def _has_name(descriptor: int, path: Path) -> bool:
    """Whether a folder that was opened exists, and has this name."""
    opened = os.fstat(descriptor)
    try:
        return opened.st_nlink > 0 and os.path.samestat(opened, path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def _opened(descriptor: int, *names: str) -> Iterator[int]:
    """A folder within a folder that is open. Raises OSError if there is a link on the way."""
    opened = os.dup(descriptor)
    try:
        for name in names:
            inner = os.open(name, _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def _remove_tree(folder: SpareFolder) -> None:
    with suppress(OSError):
        folder.allow_tablespaces(True)
    # It follows no links, even if they are made meanwhile.
    assert shutil.rmtree.avoids_symlink_attacks
    shutil.rmtree(folder.path, ignore_errors=True)


def _remove(folder: SpareFolder) -> None:
    """Removes a folder. If its postmaster was killed, backends may be making files in it for a moment."""
    end_s = time.monotonic() + _END_S
    _remove_tree(folder)
    while folder.path.exists() and time.monotonic() < end_s:
        time.sleep(_LOOK_EVERY_S)
        _remove_tree(folder)
