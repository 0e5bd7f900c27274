"""Which host of a cell leads, on a real PostgreSQL behind two hosts: who makes the others wait, and who does not."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from plainsql_server.core.errors import EngineError, ServiceError
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.health import PROBE_ROLE
from plainsql_server.engine.pool.pool import Pool
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from server.tests.engine.conftest import ROLE
from server.tests.engine.pooled_cell import WAIT_LIMIT_S, ask, backends
from server.tests.postgres import SUPERUSER, Postgres

REFUSED = "refused"
SOCKET = ".s.PGSQL.5432"


class Hosts:
    """Two hosts, each a folder with a socket or none; the leader's is a link to PostgreSQL's."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self._target = Path(postgres.socket_dir) / SOCKET
        self.sockets = [folder / name / SOCKET for name in ("a", "b")]
        for each in self.sockets:
            each.parent.mkdir()
        hosts = ",".join(str(each.parent) for each in self.sockets)
        self.conninfo = f"host={hosts} port=5432,5432 target_session_attrs=primary"
        self.lead(0)

    def lead(self, place: int | None) -> None:
        """Has this host lead from now on, or none. Connections stay."""
        for each in self.sockets:
            each.unlink(missing_ok=True)
        if place is not None:
            self.sockets[place].symlink_to(self._target)


@pytest.fixture
def hosts(postgres: Postgres, engine: psycopg.Connection) -> Iterator[Hosts]:
    if not engine.execute("select from pg_roles where rolname = %s", (PROBE_ROLE,)).rowcount:
        engine.execute(f"create role {PROBE_ROLE} login".encode())
    with TemporaryDirectory(prefix="plainsql-test-") as folder:
        yield Hosts(Path(folder), postgres)


@asynccontextmanager
async def pools_of(limits: PoolLimits = PoolLimits(4, 8, 100)) -> AsyncIterator[Pools]:  # noqa: B008  # it is frozen
    pools = Pools(limits, 2_000, lambda _: None)
    try:
        yield pools
    finally:
        await pools.close()


def pool_of(pools: Pools, hosts: Hosts, database: str, role: str = ROLE) -> Pool:
    return pools.for_address(Address(hosts.conninfo, database, role), f"organization of {role} in {database}")


@pytest.fixture
def refused(engine: psycopg.Connection) -> Iterator[None]:
    """A role that may have no connection, and a database that takes none."""
    engine.execute(f"create role {REFUSED} login connection limit 0")
    engine.execute(f"create database {REFUSED} allow_connections false")
    yield
    engine.execute(f"drop database {REFUSED}")
    engine.execute(f"drop role {REFUSED}")


@pytest.mark.parametrize(("name", "role"), [("postgres", REFUSED), (REFUSED, SUPERUSER), ("nowhere", SUPERUSER)])
@pytest.mark.usefixtures("refused")
async def test_a_rejected_tenant_delays_no_other_tenant(
    engine: psycopg.Connection, hosts: Hosts, database: str, name: str, role: str
) -> None:
    async with pools_of() as pools:
        other = pool_of(pools, hosts, database)
        await ask(other, "select 1")
        before = backends(engine, database)
        asked = asyncio.create_task(ask(pool_of(pools, hosts, name, role), "select 1", timeout_ms=20_000))
        while not asked.done():
            assert other.cell.leader.place == 0
            await ask(other, "select 1")
        with pytest.raises(EngineError):
            await asked
        assert backends(engine, database) == before


async def test_a_connection_rejected_by_a_standby_is_made_to_the_leader(
    engine: psycopg.Connection, hosts: Hosts, database: str
) -> None:
    async with pools_of() as pools:
        first = pool_of(pools, hosts, database)
        await ask(first, "select 1")
        before = backends(engine, database)
        hosts.lead(1)
        assert await ask(pool_of(pools, hosts, database, SUPERUSER), "select 1 as a") == [b'{"a":1}']
        assert first.cell.leader.place == 1
        assert await ask(first, "select 1 as a") == [b'{"a":1}']
        assert not backends(engine, database) & before, "a connection to the host that led was lent"


async def test_no_connection_is_made_while_no_host_leads(hosts: Hosts, database: str) -> None:
    async with pools_of() as pools:
        first = pool_of(pools, hosts, database)
        await ask(first, "select 1")
        hosts.lead(None)
        with pytest.raises(EngineError):
            await ask(pool_of(pools, hosts, database, SUPERUSER), "select 1", timeout_ms=500)
        assert first.cell.leader.place is None
        asked = asyncio.create_task(ask(first, "select 1 as a"))
        await asyncio.sleep(0.2)
        assert not asked.done()
        hosts.lead(1)
        assert await asked == [b'{"a":1}']


async def test_an_unresponsive_leader_is_detected_by_requests_with_short_deadlines(hosts: Hosts, database: str) -> None:
    async with pools_of() as pools:
        first = pool_of(pools, hosts, database)
        await ask(first, "select 1")
        hosts.lead(None)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(hosts.sockets[0]))
            silent.listen()
            async with asyncio.timeout(2 * WAIT_LIMIT_S):
                while first.cell.leader.place is not None:
                    with pytest.raises(ServiceError):
                        await ask(pool_of(pools, hosts, database, SUPERUSER), "select 1", timeout_ms=200)


async def test_a_backend_that_ignores_termination_does_not_delay_other_requests(
    engine: psycopg.Connection, hosts: Hosts, database: str
) -> None:
    async with pools_of() as pools:
        pool = pool_of(pools, hosts, database)
        asked = asyncio.create_task(ask(pool, "select pg_sleep(20)", timeout_ms=500))
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not backends(engine, database):  # noqa: ASYNC110  # another process is watched
                await asyncio.sleep(0.005)
        (pid,) = backends(engine, database)
        # Stopped, it does not see the request to terminate.
        os.kill(pid, signal.SIGSTOP)
        try:
            # At 0.5 s it is asked to terminate, at 1.4 s it is abandoned.
            end_s = time.monotonic() + 2
            while time.monotonic() < end_s:
                assert pool.cell.leader.place == 0
                await asyncio.sleep(0.005)
            with pytest.raises(ServiceError):
                await asked
        finally:
            os.kill(pid, signal.SIGCONT)
