"""What is rotated in drills: two data planes and a control plane with TLS on both sides, a cell, and a directory.

Each plane has certificates, a login to the directory and the key that seals secrets, in files as `setup` makes them.
`Planes.reload` and `Planes.reload_cell` wait until new connections use what is new.
"""

import asyncio
import secrets
import shutil
import signal
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo

from plainsql_server.cli import main
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sealing.keyring import new_key
from server.tests.customers import Customers
from server.tests.drills.writers import TABLE
from server.tests.load import IS_FULL, NEW_PROCESS, Node, running_node
from server.tests.operations.stage import Stage
from server.tests.pki_cell import Pki, PkiCell, running_pki_cell
from server.tests.postgres import SUPERUSER, Postgres

_LIMIT_S = 150.0
# Old processes end soon after a reload: after ten times this long. Until then, clients that keep their connections get
# an answer that ends them.
_DRAIN_MS = 150
# The folder of each node, and the role in its certificate for cells.
_DATA, _CONTROL = ("data", "data-2"), "control"
_ROLES = {"data": "plainsql_data", "data-2": "plainsql_data", _CONTROL: SUPERUSER}


@dataclass
class Planes:
    """The running parts, and what an operator does with them."""

    cell: PkiCell
    directory: Postgres
    stage: Stage
    data: list[Node]
    control: Node
    logins: dict[str, str]

    @property
    def pki(self) -> Pki:
        return self.cell.pki

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.data]

    @property
    def keys_file(self) -> Path:
        return self.pki.root / "keys"

    def trust(self) -> ssl.SSLContext:
        """What clients trust that have the newest servers.crt."""
        return ssl.create_default_context(cafile=self.pki.root / "data/servers.crt")

    async def reload(self) -> None:
        """As `systemctl reload` does. Waits until no process from before has a connection to the directory."""
        before = self.backends()
        for node in self._all():
            node.process.send_signal(signal.SIGHUP)
        await until(lambda: self._is_replaced(before))

    def _is_replaced(self, before: set[tuple[str, int]]) -> bool:
        found = self.backends()
        return {name for name, _ in found} >= set(self.logins.values()) and not before & found

    async def reload_cell(self) -> None:
        """Brings the cell its files and reloads it. Waits until new connections get what is new."""
        before = self._loaded_at()
        self.cell.update()
        await until(lambda: self._loaded_at() != before)

    def _loaded_at(self) -> object:
        return self._ask_cell("select pg_conf_load_time()")[0][0]

    def serials(self) -> set[int]:
        """The certificates with which the data planes are logged in to the cell."""
        query = (
            "select client_serial from pg_stat_ssl join pg_stat_activity using (pid)"
            f" where datname like 'd\\_%' and usename <> '{SUPERUSER}' and client_serial is not null"
        )
        return {int(serial) for (serial,) in self._ask_cell(query)}

    async def check_certificates(self) -> None:
        """Each plane shows its newest certificate to clients, and the data planes do to the cell."""
        for folder, node in zip((*_DATA, _CONTROL), self._all(), strict=True):
            shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", node.port))
            assert shown.strip() == (self.pki.root / folder / "server.crt").read_text().strip()
        newest = {self.pki.certificate(f"{folder}/client.crt").serial_number for folder in _DATA}
        await until(lambda: self.serials() == newest)

    def rows(self) -> list[str]:
        with self.cell.connect("control", database=self.stage.names()[0]) as admin:
            return [number for (number,) in admin.execute("select n from written")]

    def backends(self) -> set[tuple[str, int]]:
        """The planes' connections to the directory: login and pid."""
        query = "select usename, pid from pg_stat_activity where usename ~ '^(data|control)_'"
        with self.directory.connect() as admin:
            return set(admin.execute(query).fetchall())

    def new_logins(self) -> list[str]:
        """Creates a login for each plane and puts it into its file. Returns those from before."""
        before = list(self.logins.values())
        self.logins = {plane: add_login(self.directory, plane) for plane in self.logins}
        write_logins(self.pki.root, self.stage.dsn, self.logins)
        return before

    def drop_logins(self, names: list[str]) -> None:
        with self.directory.connect() as admin:
            for name in names:
                admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))

    def steal_certificate(self) -> str:
        """Somebody copies the certificate and the key of the second node. Returns where they are."""
        shutil.copytree(self.pki.root / _DATA[1], self.pki.root / "stolen", dirs_exist_ok=True)
        self.log_in_with("stolen")
        return "stolen"

    def log_in_with(self, certificate: str) -> None:
        """Logs in to the cell as the owner of the database, as data planes do."""
        database, owner, _ = self.stage.names()
        self.cell.connect(certificate, owner, database).close()

    def replace_certificate(self) -> None:
        """What `pki revoke` is for: the certificate and the key of the second node get a successor."""
        self.pki.run("revoke", _DATA[1])
        self.pki.issue(_DATA[1], "--client", _ROLES[_DATA[1]])

    def is_refused(self, certificate: str) -> bool:
        try:
            self.log_in_with(certificate)
        except psycopg.OperationalError as error:
            return "certificate revoked" in str(error)
        return False

    def failures(self) -> str:
        """What the planes logged beyond finished requests."""
        return "\n".join(node.failures() for node in self._all())

    def _all(self) -> list[Node]:
        return [*self.data, self.control]

    def _ask_cell(self, query: str) -> list[tuple[Any, ...]]:
        with self.cell.connect("control") as admin:
            return admin.execute(query.encode()).fetchall()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what other processes do, while clients work."""
    async with asyncio.timeout(_LIMIT_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # other processes are watched
            await asyncio.sleep(0.1)


def add_login(directory: Postgres, plane: str) -> str:
    name = f"{plane}_{secrets.token_hex(4)}"
    with directory.connect() as admin:
        group = Role[plane.upper()]
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(*map(sql.Identifier, (name, group))))
    return name


def write_logins(root: Path, dsn: str, logins: dict[str, str]) -> None:
    for plane, login in logins.items():
        (root / f"dsn-{plane}").write_text(make_conninfo(dsn, user=login))


def libpq_settings(root: Path, name: str) -> dict[str, str]:
    """How libpq logs in to cells with the certificate of this name."""
    files = {
        "PGSSLROOTCERT": "servers.crt",
        "PGSSLCRL": "servers.crl",
        "PGSSLCERT": "client.crt",
        "PGSSLKEY": "client.key",
    }
    return {variable: str(root / name / file) for variable, file in files.items()}


@contextmanager
def running_planes(postgres: Postgres, root: Path) -> Iterator[Planes]:
    """Everything for the length of the block, with the organization `acme` and its database `main`."""
    pki = Pki(root)
    assert CliRunner().invoke(main, ["pki", "init", str(root / "pki")]).exit_code == 0
    for name in _DATA:
        pki.issue(name, "--client", _ROLES[name])
    for name in (*_DATA, _CONTROL):
        pki.run("issue", f"{name}-server", "--server", "localhost", "--to", str(root / name))
    with postgres.swept(), running_pki_cell(pki) as cell, ExitStack() as stack:
        stage = _prepared(postgres, cell)
        logins = {plane: add_login(postgres, plane) for plane in ("data", "control")}
        write_logins(root, stage.dsn, logins)
        with ThreadPoolExecutor() as threads:
            nodes = list(threads.map(lambda name: stack.enter_context(_node(root, stage.dsn, name)), _ROLES))
        made = Planes(cell, postgres, stage, nodes[:2], nodes[2], logins)
        database, owner, _ = stage.names()
        with cell.connect("data", owner, database) as connection:
            connection.execute(TABLE)
        yield made


def _prepared(postgres: Postgres, cell: PkiCell) -> Stage:
    """The directory, with its secrets sealed by the key in the file."""
    root, dsn = cell.pki.root, postgres.fresh_directory()
    customers = Customers(dsn)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in libpq_settings(root, "control").items():
            patch.setenv(name, value)
        customers.add_cell("local", f"host=localhost port={cell.port} sslmode=verify-full")
        customers.add_organization("acme")
        customers.add_database("main", "acme")
    (root / "keys").write_text(new_key())
    stage = Stage(postgres, dsn, {"PLAINSQL_SECRETS_KEYS_FILE": str(root / "keys")})
    stage.run("secrets", "rotate")
    return stage


@contextmanager
def _node(root: Path, dsn: str, name: str) -> Iterator[Node]:
    plane = "control" if name == _CONTROL else "data"
    settings = {
        "tls_cert_file": root / name / "server.crt", "tls_key_file": root / name / "server.key",
        "secrets_keys_file": root / "keys", "directory_dsn_file": root / f"dsn-{plane}",
        "drain_ms": _DRAIN_MS, **libpq_settings(root, name),
    }  # fmt: skip
    with running_node(dsn, NEW_PROCESS if IS_FULL else None, plane, **settings) as node:
        yield node
