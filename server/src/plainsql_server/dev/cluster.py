"""The private PostgreSQL cluster: its location, its user and its configuration.

The cluster's home is `postgres/` in the state folder, with the subfolders `data/` and `socket/`, both 0700. PostgreSQL
does not listen on the network. Only root and the user that PostgreSQL runs as can enter the socket's folder, so the
operating system does the authentication, and `pg_hba.conf` uses `trust`. A map of system users would need one line per
tenant on PostgreSQL 15.

Three cases need special treatment:

- You are root. PostgreSQL refuses to run as root, so it runs as the owner of the existing cluster, or else as the
  system user `postgres` or `nobody`.
- You are root, and that user cannot enter the folder (for example /root). The home is then a new folder under /var/lib,
  and `postgres` in the state folder is a link to it. It is never removed automatically: the link may have been moved
  with its folder, and data is worth more than disk space.
- The path is too long for a socket (107 bytes), or has characters that are special in a connection string. The socket
  is then in a new 0700 folder under /tmp, which is removed at stop.
"""

import os
import pwd
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from plainsql_server.dev.folder import Folder, RunState
from plainsql_server.dev.options import DevError
from plainsql_server.dev.processes import SystemAccount, run_as
from plainsql_server.dev.trusted import setting_for, trust_vector
from plainsql_server.operations.files.cell import CellConfig
from plainsql_server.operations.files.machine_memory import machine_memory_bytes

SUPERUSER = "plainsql_admin"
DIRECTORY_DATABASE = "plainsql_directory"
# Without the network, the port is only part of the socket's name. It does not have to be free.
PORT = 5432
_LONGEST_SOCKET_BYTES = 107
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@-]+\Z")
_ELSEWHERE = "/var/lib"
_SETTINGS = {
    "cluster_name": "plainsql dev",
    # A cell's `syncfs` would wait for what other programs write to this disk, and does not exist outside Linux.
    "recovery_init_sync_method": "fsync",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The private cluster of one state folder."""

    home: Path
    socket_directory: Path
    account: SystemAccount | None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def draft(self) -> Path:
        """The folder in which initdb works. It is renamed at the end, so an incomplete cluster is never used."""
        return self.home / "data.new"

    @property
    def conninfo(self) -> str:
        """The connection string of the cluster, without user and database."""
        return f"host={self.socket_directory} port={PORT}"

    def directory_dsn(self, role: str) -> str:
        """The connection string of the directory for one of its roles."""
        return f"{self.conninfo} user={role} dbname={DIRECTORY_DATABASE}"

    def existing_major(self) -> int | None:
        """The major version of the existing data, or None if there is none yet."""
        try:
            return int((self.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def configure(self, programs: Path) -> None:
        """Writes the configuration. Settings from `ALTER SYSTEM` are kept, because they are in a separate file."""
        memory_bytes = machine_memory_bytes()
        others = {**_SETTINGS, **self._trusted_settings(programs)}
        config = CellConfig(SUPERUSER, str(self.socket_directory), memory_bytes=memory_bytes, others=others)
        self._write("postgresql.conf", config.postgresql_conf())
        self._write("pg_hba.conf", config.pg_hba_conf())

    def forget_crash(self) -> None:
        """Removes the lock files of a PostgreSQL that is no longer running."""
        # If another process of the same user has reused the pid in them, PostgreSQL would refuse to start.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (self.socket_directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.draft, ignore_errors=True)

    def _trusted_settings(self, programs: Path) -> dict[str, str]:
        folder = self.home / "trusted"
        written = trust_vector(programs, folder)
        for path in written:
            give(path, self.account)
        return setting_for(folder) if written else {}

    def _write(self, name: str, text: str) -> None:
        file = self.data / name
        file.write_text(text)
        give(file, self.account)


def place_cluster(folder: Folder, state: RunState) -> Cluster:
    """Finds or creates the cluster's home and its socket folder. A socket folder under /tmp is recorded in `state`."""
    account = _account(folder)
    home = _home(folder, account)
    socket_directory = home / "socket"
    if _fits(socket_directory):
        _private_folder(socket_directory, account)
    else:
        socket_directory = Path(tempfile.mkdtemp(prefix="plainsql-", dir="/tmp"))
        give(socket_directory, account)
        state.socket_directory = str(socket_directory)
        state.save(folder)
    return Cluster(home, socket_directory, account)


def remove_socket_directory(path: str | None) -> None:
    """Removes a socket folder under /tmp, if it is still the one that was created."""
    if path is None or not Path(path).name.startswith("plainsql-") or Path(path).is_symlink():
        return
    shutil.rmtree(path, ignore_errors=True)


def give(path: Path, account: SystemAccount | None) -> None:
    """Makes PostgreSQL's user the owner of a path."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _account(folder: Folder) -> SystemAccount | None:
    if os.geteuid() != 0:
        return None
    if folder.postgres.exists():
        owner = folder.postgres.stat()
        if owner.st_uid != 0:
            return SystemAccount(owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemAccount(entry.pw_uid, entry.pw_gid)
    raise DevError("PostgreSQL can't run as root, and neither the user postgres nor nobody exists.")


def _home(folder: Folder, account: SystemAccount | None) -> Path:
    place = folder.postgres
    if place.is_symlink() and not place.exists():
        raise DevError(
            f"{place} links to {os.readlink(place)}, which doesn't exist. Remove {folder.path} to start over."
        )
    if not place.exists() and not _can_enter(folder.path, account):
        _make_elsewhere(place, account)
    home = place.resolve()
    _private_folder(home, account)
    if not _can_enter(home, account):
        raise DevError(f"PostgreSQL runs as user {account.uid if account else os.geteuid()}, which can't enter {home}.")
    return home


def _make_elsewhere(link: Path, account: SystemAccount | None) -> None:
    home = Path(tempfile.mkdtemp(prefix="plainsql-dev-", dir=_ELSEWHERE))
    (home / "state_folder").write_text(f"{link.parent}\n")
    give(home, account)
    link.symlink_to(home)


def _can_enter(path: Path, account: SystemAccount | None) -> bool:
    return account is None or run_as(account, ["/bin/sh", "-c", 'cd -- "$1"', "sh", path])


def _private_folder(path: Path, account: SystemAccount | None) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    give(path, account)


def _fits(socket_directory: Path) -> bool:
    longest = os.fsencode(socket_directory / f".s.PGSQL.{PORT}")
    return len(longest) <= _LONGEST_SOCKET_BYTES and _PLAIN_PATH.match(str(socket_directory)) is not None
