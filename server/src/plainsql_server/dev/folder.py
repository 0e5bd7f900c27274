"""The state folder: its layout, its lock, its file modes, and the record of running processes.

    .plainsql/
    ├ dev.json      how to reach the service; exists only while every part is ready
    ├ operator.env  the planes' settings, for a shell; exists as long as dev.json
    ├ state.json    what a crash would leave behind: processes, with their start times, and the socket folder
    ├ lock          held while `dev` runs here
    ├ ports.json    the ports of the planes and the alias, kept for the next start
    ├ api_key       the development key
    ├ secrets_keys  the key that seals secrets in the directory
    ├ tls/          the development CA and the server's certificate
    ├ log/          one file per part, and its predecessor
    ├ alias/        nginx's configuration and temporary files
    └ postgres/     the cluster (or a link to it, see `cluster.py`)

Every file that holds a secret has mode 0600 from its creation on. Other files in the folder are left alone.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plainsql_server.dev.options import DevError


@dataclass(frozen=True, slots=True)
class Folder:
    """The paths in a state folder, all absolute."""

    path: Path

    @property
    def description_file(self) -> Path:
        return self.path / "dev.json"

    @property
    def environment_file(self) -> Path:
        return self.path / "operator.env"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def ports_file(self) -> Path:
        return self.path / "ports.json"

    @property
    def api_key_file(self) -> Path:
        return self.path / "api_key"

    @property
    def secrets_keys_file(self) -> Path:
        return self.path / "secrets_keys"

    @property
    def provisioned_file(self) -> Path:
        return self.path / "provisioned.json"

    @property
    def tls(self) -> Path:
        return self.path / "tls"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def alias(self) -> Path:
        return self.path / "alias"

    def log_file(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def fresh_log_file(self, name: str) -> Path:
        """The part's log file for a new run. The log of the last run is renamed, so you can still read it."""
        file = self.log_file(name)
        if file.exists():
            file.replace(file.with_suffix(".log.previous"))
        return file


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """A process recorded in `state.json`. The start time distinguishes it from a later process with the same pid."""

    name: str
    pid: int
    started: str


@dataclass(slots=True)
class RunState:
    """What the next start has to clean up if this run is killed."""

    run_id: str = field(default_factory=lambda: secrets.token_hex(16))
    socket_directory: str | None = None
    """The socket folder, if it is outside the state folder and must be removed separately."""
    processes: list[RecordedProcess] = field(default_factory=list)

    def save(self, folder: Folder) -> None:
        write_json(folder.state_file, asdict(self))


def read_state(folder: Folder) -> RunState | None:
    """The record of the last run, or None if there is none."""
    try:
        raw = json.loads(folder.state_file.read_text())
        processes = [RecordedProcess(**entry) for entry in raw["processes"]]
        return RunState(run_id=raw["run_id"], socket_directory=raw["socket_directory"], processes=processes)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DevError(f"Can't read {folder.state_file}: {error}. Remove it and start again.") from error


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """The state folder, created if needed and locked until the block ends."""
    folder = Folder(path.resolve())
    try:
        _make(folder)
        lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DevError(f"Can't use {folder.path} as the state folder: {error.strerror}: {error.filename}") from error
    try:
        _take(lock, folder)
        yield folder
    finally:
        os.close(lock)


def write_secret(path: Path, text: str) -> None:
    """Writes a file with mode 0600, atomically."""
    _write(path, text, 0o600)


def write_public(path: Path, text: str) -> None:
    """Writes a file with mode 0644, atomically."""
    _write(path, text, 0o644)


def write_json(path: Path, content: Any) -> None:
    """Writes indented JSON that only the owner can read."""
    write_secret(path, json.dumps(content, indent=2) + "\n")


def _make(folder: Folder) -> None:
    # If we are root, PostgreSQL runs as another user, which must be able to enter the folder (but not to list it;
    # every secret is 0600). A folder that already has other content keeps its mode.
    folder.path.mkdir(parents=True, exist_ok=True)
    if not any(folder.path.iterdir()):
        folder.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
        write_public(folder.path / ".gitignore", "*\n")
    (folder.path / "log").mkdir(mode=0o700, exist_ok=True)
    folder.tls.mkdir(mode=0o755, exist_ok=True)


def _take(lock: int, folder: Folder) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        raise DevError(
            f"Another plainsql-server dev (process {holder}) is running in {folder.path}. "
            "Stop it, or choose another folder with --dir."
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _write(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, mode)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    draft.replace(path)
