"""The directory goes away: what is known is used for a stated time, then requests fail; nothing is made without it."""

import asyncio
import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from plainsql_server.control_plane import cells, databases, keys, organizations
from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from server.tests import plain_http
from server.tests.end_to_end.control import ControlNode, running_control
from server.tests.load import STALL_S, Client, Node, running_node
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.processes import stopped_with_children

pytestmark = pytest.mark.chaos

GRACE_MS = 4_000
_PG_CTL = "/usr/lib/postgresql/15/bin/pg_ctl"
_BACK_WITHIN_S = 60
LONGER_THAN_GRACE_S = GRACE_MS / 1000 + 2
TIMEOUT_MS = 2_000


@dataclass(frozen=True)
class Place:
    """A directory and a cell in two clusters, a node of each plane, and two keys: one that the node has seen."""

    directory: Postgres
    node: Node
    control: ControlNode
    seen: str
    unseen: str

    def stop_answering(self) -> AbstractContextManager[None]:
        """The directory stands still, with every connection open."""
        pid_file = Path(self.directory.socket_dir) / "data" / "postmaster.pid"
        return stopped_with_children(int(pid_file.read_text().split()[0]))

    def switch(self, action: str) -> None:
        """Stops or starts the directory."""
        folder = Path(self.directory.socket_dir)
        options = f"-k {folder} -p 5432 -c listen_addresses='' -c fsync=off"
        command = [_PG_CTL, "-D", str(folder / "data"), "-m", "immediate", "-w", action]
        if action == "start":
            command = [_PG_CTL, "-D", str(folder / "data"), "-l", str(folder / "log"), "-o", options, "-w", action]
        user = pwd.getpwnam("postgres").pw_uid if os.geteuid() == 0 else None
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=60, user=user)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_postgres() as directory, running_postgres() as cell:
        dsn = directory.fresh_directory()
        seen, unseen = asyncio.run(furnish(dsn, cell))
        with running_node(dsn, directory_grace_ms=GRACE_MS) as node, running_control(dsn) as control:
            yield Place(directory, node, control, seen, unseen)


async def furnish(dsn: str, cell: Postgres) -> tuple[str, str]:
    async with Directory.open(dsn) as directory:
        await cells.add(directory, "local", cell.conninfo, SUPERUSER)
        organization = await organizations.create(directory, "Acme", "dedicated")
        await databases.create(directory, organization.id, "main")
        secrets = [
            (await keys.create(directory, organization.id, "app", [Scope.WRITE, Scope.ADMIN]))[1] for _ in range(2)
        ]
    return secrets[0].text, secrets[1].text


def create_key(place: Place) -> httpx.Response:
    headers = {"Authorization": f"Bearer {place.seen}"}
    body = {"name": "x", "scopes": ["read"]}
    return plain_http.post(f"{place.control.url}/v1/keys", json=body, headers=headers)


async def test_cached_lookups_are_used_for_the_grace_period_while_the_directory_is_unavailable(place: Place) -> None:
    async with place.node.client(place.seen) as known, place.node.client(place.unseen) as unknown:
        assert (await known.query("create table t (n int)")).succeeded
        assert (await asyncio.to_thread(create_key, place)).status_code == 201
        await asyncio.to_thread(place.switch, "stop")
        stopped_s = time.monotonic()
        try:
            await served_then_refused(known, stopped_s)
            assert (await unknown.query("select 1")).code == "directory_unavailable"
            refused = await asyncio.to_thread(create_key, place)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "directory_unavailable")
        finally:
            await asyncio.to_thread(place.switch, "start")
        await served_again(known)
        await served_again(unknown)
    assert (await asyncio.to_thread(create_key, place)).status_code == 201


async def test_an_unresponsive_directory_delays_no_answer_past_its_deadline(place: Place) -> None:
    """The directory neither answers nor fails."""
    async with place.node.client(place.seen) as client:
        await served_again(client)
        with place.stop_answering():
            silent_s = time.monotonic()
            codes = set()
            while "directory_unavailable" not in codes or time.monotonic() - silent_s < LONGER_THAN_GRACE_S:
                answer = await client.query("select 1", timeout_ms=TIMEOUT_MS)
                assert answer.elapsed_s < TIMEOUT_MS / 1000 + 1 + STALL_S, answer
                assert answer.succeeded or answer.is_refusal(), answer
                codes.add(answer.code)
                await asyncio.sleep(0.02)
        await served_again(client)


async def served_then_refused(known: Client, stopped_s: float) -> None:
    answered = []
    code = await known.query("create function one() returns int language sql as 'select 1'")
    assert code.code == "directory_unavailable", "what could store code needs the directory to know it"
    while (answer := await known.query("insert into t values (1)")).succeeded:
        answered.append(answer)
        assert time.monotonic() - stopped_s < GRACE_MS / 1000 + 3
        await asyncio.sleep(0.02)
    lasted_s = time.monotonic() - stopped_s
    assert answer.code == "directory_unavailable"
    assert answer.is_refusal()
    print(
        f"{len(answered)} requests answered without the directory, the slowest in "
        f"{max(each.elapsed_s for each in answered) * 1000:.0f} ms; refused after {lasted_s:.1f} s"
    )
    assert lasted_s > GRACE_MS / 1000 - 2
    assert len(answered) > 5


async def served_again(client: Client) -> None:
    end_s = time.monotonic() + _BACK_WITHIN_S
    while not (answer := await client.query("select 1")).succeeded:
        assert time.monotonic() < end_s, answer
        await asyncio.sleep(0.05)
