"""Keys that seal secrets, and logins to the directory, are replaced while requests run: none of them fails."""

import asyncio
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from plainsql_server.core.actor import OPERATOR
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sealing.keyring import Keyring, new_key
from plainsql_server.directory.sealing.rows import reseal_all
from server.tests.consistency.faults import wait_until
from server.tests.customers import Customers
from server.tests.load import Client, NoAnswer, Node, running_node
from server.tests.postgres import Postgres, running_postgres
from server.tests.service import Service

pytestmark = pytest.mark.chaos

CLIENTS = 3
_LIMIT_S = 150.0
# Each request asks the directory, and needs the database's secret.
_UNCACHED = {"principal_cache_ms": 0, "channel_cache_ms": 0, "drain_ms": 100}


@pytest.fixture
def cluster() -> Iterator[Postgres]:
    """One in which the planes' logins need a password."""
    with running_postgres() as running:
        rules = Path(running.socket_dir) / "data" / "pg_hba.conf"
        rules.write_text(f"local all +{Role.DATA} scram-sha-256\n{rules.read_text()}")
        with running.connect() as admin:
            admin.execute(f"ALTER ROLE {Role.DATA} NOLOGIN")
            admin.execute("SELECT pg_reload_conf()")
        yield running


def add_login(cluster: Postgres, directory_dsn: str, name: str) -> str:
    """A login with the data plane's rights; the DSN with its password."""
    password = secrets.token_hex(16)
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}")
    with cluster.connect() as admin:
        admin.execute(create.format(sql.Identifier(name), password, sql.Identifier(Role.DATA)))
    return make_conninfo(directory_dsn, user=name, password=password)


@dataclass
class Writing:
    """A client that writes without a pause, with idempotency keys."""

    client: Client
    answered: int = 0
    failed: list[str] = field(default_factory=list)

    async def run(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            try:
                key = secrets.token_hex(8)
                await self.client.post(
                    "/v1/query", {"sql": "insert into t values ($1)", "params": [key]}, idempotency_key=key
                )
                answer = await self.client.answer()
                if not answer.succeeded:
                    self.failed.append(str(answer.body))
            except (NoAnswer, OSError) as error:
                self.failed.append(repr(error))
            self.answered += 1
            # So that it reaches new processes.
            self.client.drop()
            await asyncio.sleep(0.02)

    async def go_on(self) -> None:
        """Waits until some more requests are answered."""
        wanted = self.answered + 3
        await wait_until(lambda: self.answered >= wanted, _LIMIT_S)


async def reload(node: Node, cluster: Postgres) -> None:
    """Reloads a node and waits until the old process has drained and has left the directory."""
    before = connections(cluster)
    node.process.send_signal(signal.SIGHUP)
    await wait_until(lambda: not before & connections(cluster), _LIMIT_S)


async def test_keys_and_logins_are_replaced_and_no_request_fails(cluster: Postgres, tmp_path: Path) -> None:
    dsn, keys, login = cluster.fresh_directory(), tmp_path / "keys", tmp_path / "dsn"
    customers = Customers(dsn)
    customers.add_cell("local", cluster.conninfo)
    customers.add_organization("acme")
    customers.add_database("main", "acme")
    old, new = new_key(), new_key()
    keys.write_text(old)
    login.write_text(add_login(cluster, dsn, "data_one"))
    files = {"secrets_keys_file": keys, "directory_dsn_file": login}
    with running_node(dsn, "plainsql_server", **files, **_UNCACHED) as node:
        api_key = customers.new_key("write", organization="acme")
        async with node.client(api_key) as client:
            assert (await client.query("create table t (k text primary key)")).succeeded
        is_over = asyncio.Event()
        clients = [Writing(Client(node.port, api_key)) for _ in range(CLIENTS)]
        tasks = [asyncio.create_task(each.run(is_over)) for each in clients]
        # The secret is plain so far. It is sealed with the first key, then with the second one.
        await rotate(dsn, old, expected=1)
        await asyncio.gather(*(each.go_on() for each in clients))
        keys.write_text(f"{old}\n{new}\n")
        await reload(node, cluster)
        await rotate(dsn, f"{new} {old}", expected=1)
        await asyncio.gather(*(each.go_on() for each in clients))
        keys.write_text(new)
        login.write_text(add_login(cluster, dsn, "data_two"))
        await reload(node, cluster)
        assert {login for login, _ in connections(cluster)} == {"data_two"}
        with cluster.connect() as admin:
            admin.execute("DROP ROLE data_one")
        await asyncio.gather(*(each.go_on() for each in clients))
        is_over.set()
        await asyncio.gather(*tasks)
        assert [each.failed for each in clients if each.failed] == []
        async with node.client(api_key) as client:
            assert (await client.query("select count(*) from t")).value == sum(each.answered for each in clients)


async def rotate(dsn: str, keys: str, expected: int) -> None:
    async with Directory.open(dsn, 1, secrets=Keyring.of(keys)) as directory:
        assert await reseal_all(directory, OPERATOR) == (expected, {}, 0)


def connections(cluster: Postgres) -> set[tuple[str, int]]:
    """The connections to the directory of the planes' logins."""
    with cluster.connect() as admin:
        return set(admin.execute("SELECT usename, pid FROM pg_stat_activity WHERE usename LIKE 'data_%'").fetchall())


async def test_a_plane_that_lacks_the_key_serves_what_needs_no_secret(service: Service) -> None:
    with running_node(service.directory_dsn, secrets_keys=new_key()) as node:
        async with node.client(service.api_key) as client:
            assert (await client.query("select 1 as n")).value == 1
            await client.post("/v1/query", {"sql": "select 1"}, idempotency_key="k")
            assert (await client.answer()).code == "service_failure"
        # The log is written a little later.
        missing = "which PLAINSQL_SECRETS_KEYS does not contain"
        await wait_until(lambda: missing in node.log.read_text(), _LIMIT_S)
