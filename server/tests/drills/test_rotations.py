"""Drill: everything that can be rotated is rotated while clients write, by the commands in docs/operating.md.

Certificates of the plane and of the cell, both authorities, the key that seals secrets, and the login to the directory.
No request may fail. Each step is complete when new connections use what is new. `make soak PART=drills` rotates one
after the other; the gate rotates everything at once, with two reloads of the plane.
"""

import asyncio
import secrets
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo

from plainsql_server.cli import main
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sealing.keyring import new_key
from server.tests.consistency.faults import wait_until
from server.tests.customers import Customers
from server.tests.drills.writers import TABLE, DrillLoad, drilled
from server.tests.load import Node, running_node, size
from server.tests.operations.stage import Stage
from server.tests.pki_cell import Pki, PkiCell, running_pki_cell
from server.tests.postgres import Postgres

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

_ROUNDS = size("PLAINSQL_TEST_DRILL_ROUNDS", 1)
_LIMIT_S = 150.0
# Old processes have ended soon after a reload.
_NODE = {"drain_ms": 50}


@contextmanager
def certificates_of(pki: Pki, name: str) -> Iterator[None]:
    """What starts within the block logs in to cells with the certificate of this name."""
    files = {
        "PGSSLROOTCERT": "servers.crt",
        "PGSSLCRL": "servers.crl",
        "PGSSLCERT": "client.crt",
        "PGSSLKEY": "client.key",
    }
    with pytest.MonkeyPatch.context() as patch:
        for variable, file in files.items():
            patch.setenv(variable, str(pki.root / name / file))
        yield


@dataclass
class Site:
    """A node with TLS on both sides, its cell, and its directory with a login and a key in files."""

    cell: PkiCell
    directory: Postgres
    stage: Stage
    node: Node
    login: str

    @property
    def pki(self) -> Pki:
        return self.cell.pki

    @property
    def keys_file(self) -> Path:
        return self.pki.root / "keys"

    @property
    def login_file(self) -> Path:
        return self.pki.root / "dsn"

    def trust(self) -> ssl.SSLContext:
        """What clients trust that have the newest servers.crt."""
        return ssl.create_default_context(cafile=self.pki.root / "data/servers.crt")

    async def reload_node(self) -> None:
        """As `systemctl reload plainsql-data` does. Waits until no old process has a connection to the directory."""
        before = self.logins()
        self.node.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: bool(self.logins()) and not before & self.logins(), _LIMIT_S)

    async def reload_cell(self) -> None:
        """Brings the cell its files and reloads it. Waits until new connections get what is new."""
        before = self.loaded_at()
        self.cell.update()
        await wait_until(lambda: self.loaded_at() != before, _LIMIT_S)

    def loaded_at(self) -> object:
        return self._ask_cell("select pg_conf_load_time()")[0][0]

    def serials(self) -> set[int]:
        """The certificates with which the node is logged in to the cell."""
        query = (
            "select client_serial from pg_stat_ssl join pg_stat_activity using (pid)"
            " where datname like 'd\\_%' and client_serial is not null"
        )
        return {int(serial) for (serial,) in self._ask_cell(query)}

    def check_certificates(self) -> None:
        """The node shows its newest certificate to clients, and to the cell."""
        shown = ssl.get_server_certificate(("127.0.0.1", self.node.port))
        assert shown.strip() == (self.pki.root / "data/server.crt").read_text().strip()
        assert self.serials() == {self.pki.certificate("data/client.crt").serial_number}

    def rows(self) -> list[str]:
        with self.cell.connect("control", database=self.stage.names()[0]) as admin:
            return [number for (number,) in admin.execute("select n from written")]

    def logins(self) -> set[tuple[str, int]]:
        with self.directory.connect() as admin:
            query = "select usename, pid from pg_stat_activity where usename like 'data\\_%'"
            return set(admin.execute(query).fetchall())

    def new_login(self) -> str:
        """Creates a login of the data plane and puts it into the file."""
        self.login = add_login(self.directory)
        self.login_file.write_text(make_conninfo(self.stage.dsn, user=self.login))
        return self.login

    def drop_login(self, name: str) -> None:
        with self.directory.connect() as admin:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))

    def _ask_cell(self, query: str) -> list[tuple[Any, ...]]:
        with self.cell.connect("control") as admin:
            return admin.execute(query.encode()).fetchall()


def add_login(directory: Postgres) -> str:
    name = f"data_{secrets.token_hex(4)}"
    with directory.connect() as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(*map(sql.Identifier, (name, Role.DATA))))
    return name


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    pki = Pki(tmp_path)
    assert CliRunner().invoke(main, ["pki", "init", str(tmp_path / "pki")]).exit_code == 0
    pki.issue("data", "--client", "plainsql_data")
    pki.run("issue", "data-server", "--server", "localhost", "--to", str(tmp_path / "data"))
    with postgres.swept(), running_pki_cell(pki) as cell:
        dsn = postgres.fresh_directory()
        customers = Customers(dsn)
        with certificates_of(pki, "control"):
            customers.add_cell("local", f"host=localhost port={cell.port} sslmode=verify-full")
            customers.add_organization("acme")
            customers.add_database("main", "acme")
        (tmp_path / "keys").write_text(new_key())
        stage = Stage(postgres, dsn, {"PLAINSQL_SECRETS_KEYS_FILE": str(tmp_path / "keys")})
        stage.run("secrets", "rotate")
        login = add_login(postgres)
        (tmp_path / "dsn").write_text(make_conninfo(dsn, user=login))
        files = {
            "tls_cert_file": tmp_path / "data/server.crt", "tls_key_file": tmp_path / "data/server.key",
            "secrets_keys_file": tmp_path / "keys", "directory_dsn_file": tmp_path / "dsn",
        }  # fmt: skip
        with certificates_of(pki, "data"), running_node(dsn, "plainsql_server", **files, **_NODE) as node:
            made = Site(cell, postgres, stage, node, login)
            database, owner, _ = stage.names()
            with cell.connect("data", owner, database) as connection:
                connection.execute(TABLE)
            yield made


@asynccontextmanager
async def writing(site: Site, what: str) -> AsyncIterator[DrillLoad]:
    """Clients write within the block. Afterwards, nothing may be lost, and no request may have failed."""
    key = Customers(site.stage.dsn).new_key("write", organization="acme")
    async with drilled(key, [site.node.port], trust=site.trust()) as load:
        await load.more()
        yield load
    load.check(site.rows())
    load.show(what)
    assert load.failures == {}


async def test_everything_is_rotated_at_once_and_no_request_fails(site: Site) -> None:
    async with writing(site, "authorities, certificates, the key and the login are rotated at once") as load:
        previous, (old, new) = site.login, (site.keys_file.read_text().strip(), new_key())
        for kind in ("client", "server"):
            site.pki.run("rotate", kind)
        load.trust = site.trust()
        await site.reload_cell()
        site.pki.run("renew", "--all")
        site.keys_file.write_text(f"{old}\n{new}\n")
        site.new_login()
        await site.reload_cell()
        await site.reload_node()
        await load.more()
        site.keys_file.write_text(f"{new}\n{old}\n")
        await asyncio.to_thread(site.stage.run, "secrets", "rotate")
        for kind in ("client", "server"):
            site.pki.run("retire", kind)
        load.trust = site.trust()
        site.keys_file.write_text(new)
        site.drop_login(previous)
        await site.reload_cell()
        await site.reload_node()
        await load.more()
        site.check_certificates()


@pytest.mark.full
async def test_everything_is_rotated_one_by_one_and_no_request_fails(site: Site) -> None:
    async with writing(site, "authorities, certificates, the key and the login are rotated one by one") as load:
        for _ in range(_ROUNDS):
            await renew_certificates(site, load)
            await replace_client_authority(site, load)
            await replace_server_authority(site, load)
            await replace_key(site, load)
            await replace_login(site, load)


async def renew_certificates(site: Site, load: DrillLoad) -> None:
    """Of the plane and of the cell."""
    site.pki.run("renew", "data-server", "cell")
    await site.reload_cell()
    await site.reload_node()
    await load.more()
    site.check_certificates()


async def replace_client_authority(site: Site, load: DrillLoad) -> None:
    before = site.serials()
    assert before
    site.pki.run("rotate", "client")
    await site.reload_cell()
    site.pki.run("renew", "data", "control", "spare")
    await site.reload_node()
    await load.more()
    site.check_certificates()
    assert not before & site.serials()
    site.pki.run("retire", "client")
    await site.reload_cell()
    # Its connections are new, so what was retired is not needed.
    await site.reload_node()
    await load.more()


async def replace_server_authority(site: Site, load: DrillLoad) -> None:
    site.pki.run("rotate", "server")
    # Clients of the planes get the new servers.crt before the planes get their new certificate.
    load.trust = site.trust()
    await load.more()
    site.pki.run("renew", "data-server", "cell")
    await site.reload_cell()
    await site.reload_node()
    await load.more()
    site.pki.run("retire", "server")
    load.trust = site.trust()
    await site.reload_node()
    await load.more()


async def replace_key(site: Site, load: DrillLoad) -> None:
    old, new = site.keys_file.read_text().strip(), new_key()
    site.keys_file.write_text(f"{old}\n{new}\n")
    await site.reload_node()
    site.keys_file.write_text(f"{new}\n{old}\n")
    await asyncio.to_thread(site.stage.run, "secrets", "rotate")
    await load.more()
    site.keys_file.write_text(new)
    await site.reload_node()
    await load.more()


async def replace_login(site: Site, load: DrillLoad) -> None:
    previous = site.login
    site.new_login()
    await site.reload_node()
    assert {login for login, _ in site.logins()} == {site.login}
    site.drop_login(previous)
    await load.more()


def test_the_drill_would_notice_a_step_that_is_left_out(tmp_path: Path) -> None:
    """A cell that was not reloaded after the authority was added refuses the certificates that are renewed."""
    pki = Pki(tmp_path)
    assert CliRunner().invoke(main, ["pki", "init", str(tmp_path / "pki")]).exit_code == 0
    with running_pki_cell(pki) as cell:
        pki.run("rotate", "client")
        pki.run("renew", "control")
        assert cell.is_refused("control", "unknown ca")
