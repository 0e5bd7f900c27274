"""What requests meet while their database is stopped for a move, or has been moved, or while its cell is down."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from server.tests.end_to_end.relay import Relay
from server.tests.events import StreamClient
from server.tests.fleet.concurrent_changes import move_with_changes
from server.tests.fleet.stage import Fleet
from server.tests.load import STALL_S, Client, Node, running_node
from server.tests.postgres import Postgres
from server.tests.processes import wait_for

HOLD = "update databases set held_until = now() + interval '120 s' where name = 'main'"
RELEASE = "update databases set held_until = null where name = 'main'"
APPLIED_AFTER_S = 3
SLOW = "select n, pg_sleep(0.01) from generate_series(1, 100000) n"


@dataclass(frozen=True)
class Stage:
    """A fleet, and a node that can be cut off from the directory."""

    fleet: Fleet
    node: Node
    relay: ExitStack

    def client(self) -> Client:
        return Client(self.node.port, self.fleet.key)


@pytest.fixture(scope="module")
def stage(clusters: tuple[Postgres, Postgres]) -> Iterator[Stage]:
    with (
        clusters[0].swept(),
        clusters[1].swept(),
        tempfile.TemporaryDirectory(prefix="plainsql-relay-") as folder,
        ExitStack() as relay,
    ):
        fleet = Fleet.made(*clusters)
        relay.enter_context(Relay(Path(folder), clusters[0].socket_dir))
        with running_node(make_conninfo(fleet.dsn, host=folder), directory_grace_ms=60_000) as node:
            yield Stage(fleet, node, relay)


async def test_a_request_to_a_held_database_waits_and_continues(stage: Stage) -> None:
    async with stage.client() as client:
        assert (await client.query("select 1")).succeeded
        stage.fleet.now.ask(HOLD)
        # Once the change has taken effect, it is rejected.
        await until_refused(client)
        waiting = asyncio.create_task(client.query("select 2 as a", timeout_ms=20_000))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        released_s = time.monotonic()
        stage.fleet.now.ask(RELEASE)
        answer = await waiting
        assert answer.succeeded, answer
        assert time.monotonic() - released_s < APPLIED_AFTER_S + STALL_S


async def test_a_request_to_a_held_database_waits_no_longer_than_its_deadline(stage: Stage) -> None:
    async with stage.client() as client:
        stage.fleet.now.ask(HOLD)
        await until_refused(client)
        answer = await client.query("select 1", timeout_ms=400)
        assert (answer.status, answer.code, answer.outcome) == (503, "engine_unavailable", "not_executed")
        assert answer.is_refusal()
        assert 0.3 < answer.elapsed_s < 5 + STALL_S
        assert "being moved or copied" in answer.body["error"]["message"]
        stage.fleet.now.ask(RELEASE)
        assert (await client.query("select 1", timeout_ms=20_000)).succeeded


async def until_refused(client: Client) -> None:
    """A change takes effect within a second, plus pauses of the machine; then requests that can't wait are rejected."""
    changed_s = time.monotonic()
    while (await client.query("select 1", timeout_ms=100)).code != "engine_unavailable":
        assert time.monotonic() - changed_s < APPLIED_AFTER_S + STALL_S


async def test_requests_to_a_cell_that_is_down_are_refused_at_once(stage: Stage) -> None:
    operator = stage.fleet.now
    async with stage.client() as client:
        assert (await client.query("select 1")).succeeded
        await asyncio.to_thread(operator.run, "cell", "set", "local", "--state", "down")
        await until_refused(client)
        answer = await client.query("select 1", timeout_ms=20_000)
        assert answer.is_refusal()
        assert answer.elapsed_s < 5 + STALL_S
        await asyncio.to_thread(operator.run, "cell", "set", "local", "--state", "active")
        changed_s = time.monotonic()
        while not (await client.query("select 1")).succeeded:
            assert time.monotonic() - changed_s < APPLIED_AFTER_S + STALL_S


async def test_a_stream_interrupted_by_a_move_ends_with_an_error(stage: Stage) -> None:
    to = stage.fleet.other()
    async with StreamClient(stage.node.port, stage.fleet.key) as stream:
        await stream.send(SLOW)
        await stream.read_head()
        assert stream.status == 200
        _, last = await asyncio.gather(asyncio.to_thread(stage.fleet.move), stream.last_event())
    assert stage.fleet.cell() == to
    assert last is not None
    assert last.type == "error"
    async with stage.client() as client:
        assert (await client.query("select 1", timeout_ms=20_000)).succeeded


async def test_a_write_running_at_the_switch_of_a_move_is_rolled_back_and_reported(stage: Stage) -> None:
    fleet, loop = stage.fleet, asyncio.get_running_loop()
    async with stage.client() as client, stage.client() as other:
        assert (await client.query("create table slow (n int)", timeout_ms=20_000)).succeeded

        def begin_to_write() -> None:
            sending = client.send("insert into slow select 1 from pg_sleep(25)", timeout_ms=28_000)
            asyncio.run_coroutine_threadsafe(sending, loop).result()
            with fleet.now.admin() as admin:
                at_work = "select from pg_stat_activity where state = 'active' and query ~ '^insert into slow'"
                wait_for(lambda: admin.execute(at_work).rowcount > 0, 15, lambda: "it is not at work")

        to = fleet.other()
        await asyncio.to_thread(move_with_changes, fleet, {"switch": begin_to_write}, to)
        answer = await client.answer()
        assert fleet.cell() == to
        assert (answer.status, answer.outcome) == (503, "rolled_back"), answer
        assert (await other.query("select count(*)::int from slow", timeout_ms=20_000)).value == 0


async def test_a_node_that_missed_a_move_cannot_write_to_the_old_location(stage: Stage) -> None:
    """It is the last test of its node: this one never hears of the directory again."""
    async with stage.client() as client:
        assert (await client.query("create table t (n int)")).succeeded
        stage.relay.close()
        # What it knows, it bears with.
        assert (await client.query("insert into t values (1)")).succeeded
        await asyncio.to_thread(stage.fleet.move)
        for _ in range(3):
            answer = await client.query("insert into t values (2)", timeout_ms=1_000)
            assert answer.is_refusal(), answer
    with stage.fleet.now.owner() as owner:
        assert owner.execute("select n from t").fetchall() == [(1,)]
