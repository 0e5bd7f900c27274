"""Databases made and deleted by several clients while control processes are killed: directory and cell agree.

`PLAINSQL_TEST_DATABASES=500` is the full size.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import httpx
import psycopg
import pytest

from plainsql_server.control_plane import cells, keys, organizations
from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from server.tests import plain_http
from server.tests.control_plane.cell_state import disagreements
from server.tests.end_to_end.control import ControlNode, running_control
from server.tests.load import percentile, size
from server.tests.postgres import SUPERUSER, Postgres, running_postgres

pytestmark = pytest.mark.chaos

DATABASES = size("PLAINSQL_TEST_DATABASES", 16)
CLIENTS = 8
NODES = 2
IS_FULL = DATABASES >= 500
# The short form is over after some seconds.
KILL_EVERY_S, KILLS_AT_LEAST = (1.5, 2) if IS_FULL else (0.5, 1)
# Longer than a claim lasts, so that what a killed process had begun is taken up by another.
_SETTLED_WITHIN_S = 60


@dataclass(frozen=True)
class Place:
    """A directory and a cell of the test's own, with an administrator's key."""

    postgres: Postgres
    dsn: str
    key: str


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_postgres() as postgres:
        dsn = postgres.fresh_directory()
        yield Place(postgres, dsn, asyncio.run(furnish(dsn, postgres)))


async def furnish(dsn: str, postgres: Postgres) -> str:
    async with Directory.open(dsn) as directory:
        await cells.add(directory, "local", postgres.conninfo, SUPERUSER)
        organization = await organizations.create(directory, "Acme", "dedicated")
        _, secret = await keys.create(directory, organization.id, "admin", [Scope.ADMIN])
    return secret.text


@dataclass
class Clients:
    """Clients that create and delete, and ask another node, or later, when one does not answer."""

    nodes: list[ControlNode]
    http: httpx.AsyncClient
    created_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    async def make_and_delete(self, name: str) -> None:
        began_s = time.monotonic()
        response = await self._ask("POST", "/v1/databases", json={"name": name})
        if response.status_code == 201 and response.json()["database"]["state"] == "ready":
            self.created_s.append(time.monotonic() - began_s)
        # After an answer that never came, the database may be there already.
        assert response.status_code in (201, 409), response.text
        database_id = await self._id_of(name)
        response = await self._ask("DELETE", f"/v1/databases/{database_id}?restorable=false")
        assert response.status_code in (202, 404), response.text

    async def _id_of(self, name: str) -> str:
        listed = (await self._ask("GET", "/v1/databases?limit=1000")).json()["databases"]
        return next(str(each["id"]) for each in listed if each["name"] == name)

    async def _ask(self, method: str, path: str, **arguments: object) -> httpx.Response:
        while True:
            with suppress(httpx.TransportError):
                url = random.choice(self.nodes).url
                response = await self.http.request(method, f"{url}{path}", **arguments)  # type: ignore[arg-type]
                if response.status_code < 500:
                    return response
                self.refused[response.json()["error"]["code"]] += 1
            self.unanswered += 1
            await asyncio.sleep(0.1)


async def kill_round_robin(nodes: list[ControlNode], done: asyncio.Event) -> int:
    """Kills one node after the other with -9 and starts it again, until all is done. How many it has killed."""
    kills = 0
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), KILL_EVERY_S)
            return kills
        node = nodes[kills % len(nodes)]
        assert node.process.poll() is None, f"it ended by itself:\n{node.log.read_text()}"
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        kills += 1


def unfinished(dsn: str) -> int:
    with psycopg.connect(dsn) as directory:
        found = directory.execute("SELECT count(*) FROM databases WHERE state IN ('creating', 'deleting', 'failed')")
        ((count,),) = found.fetchall()
    return int(count)


@pytest.mark.timeout(1_800)
async def test_repeatedly_killed_control_processes_leak_nothing(place: Place) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(running_control(place.dsn)) for _ in range(NODES)]
        limits = httpx.Limits(max_connections=CLIENTS)
        headers = {"Authorization": f"Bearer {place.key}"}
        async with plain_http.async_client(headers=headers, limits=limits) as http:
            clients = Clients(nodes, http)
            done = asyncio.Event()
            names = iter([f"db{number}" for number in range(DATABASES)])

            async def client() -> None:
                for name in names:
                    await clients.make_and_delete(name)

            # Whatever fails, the killing or a client, ends the test.
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(kill_round_robin(nodes, done))
                working = [group.create_task(client()) for _ in range(CLIENTS)]
                await asyncio.wait(working)
                done.set()
        end_s = time.monotonic() + _SETTLED_WITHIN_S
        while unfinished(place.dsn):
            assert time.monotonic() < end_s, unfinished(place.dsn)
            await asyncio.sleep(0.2)
    p50_ms, p95_ms = (percentile(clients.created_s, percent) * 1000 for percent in (50, 95))
    print(f"{DATABASES} databases, {killing.result()} kills, {clients.unanswered} requests unanswered or refused")
    print(f"(by code: {dict(clients.refused)});")
    print(f"creation {p50_ms:.0f} ms at p50, {p95_ms:.0f} ms at p95")
    assert killing.result() >= KILLS_AT_LEAST
    assert "service_failure" not in clients.refused
    assert disagreements(place.dsn, place.postgres.dsn()) == {"leaked": set(), "lost": set()}
    with psycopg.connect(place.dsn) as directory:
        states = directory.execute("SELECT state, count(*) FROM databases GROUP BY state").fetchall()
    assert states == [("deleted", DATABASES)]
