"""What requests meet while their database is stopped for a move, or while its cell is down."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from server.tests.fleet.stage import Fleet
from server.tests.load import Client, Node, running_node

HOLD = "update databases set held_until = now() + interval '30 s' where name = 'main'"
RELEASE = "update databases set held_until = null where name = 'main'"


@pytest.fixture
def node(fleet: Fleet) -> Iterator[Node]:
    with running_node(fleet.dsn) as running:
        yield running


async def test_a_request_to_a_held_database_waits_and_goes_on(fleet: Fleet, node: Node) -> None:
    async with Client(node.port, fleet.key) as client:
        assert (await client.query("select 1")).succeeded
        fleet.now.ask(HOLD)
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(client.query("select 2 as a", timeout_ms=20_000))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        released_s = time.monotonic()
        fleet.now.ask(RELEASE)
        answer = await waiting
        assert answer.succeeded, answer
        assert time.monotonic() - released_s < 1


async def test_a_request_to_a_held_database_waits_no_longer_than_its_deadline(fleet: Fleet, node: Node) -> None:
    async with Client(node.port, fleet.key) as client:
        fleet.now.ask(HOLD)
        answer = await client.query("select 1", timeout_ms=400)
        assert (answer.status, answer.code, answer.outcome) == (503, "engine_unavailable", "not_executed")
        assert answer.is_refusal()
        assert 0.3 < answer.elapsed_s < 5
        assert "being moved" in answer.body["error"]["message"]


async def test_requests_to_a_cell_that_is_down_are_refused_at_once(fleet: Fleet, node: Node) -> None:
    async with Client(node.port, fleet.key) as client:
        assert (await client.query("select 1")).succeeded
        fleet.now.run("cell", "set", "local", "--state", "down")
        changed_s = time.monotonic()
        while (answer := await client.query("select 1")).succeeded:
            assert time.monotonic() - changed_s < 1, "heeded within a second"
        assert answer.is_refusal()
        assert answer.elapsed_s < 1.5
        fleet.now.run("cell", "set", "local", "--state", "active")
        assert (await client.query("select 1")).succeeded


async def test_a_node_that_is_not_told_of_the_move_writes_to_nothing_that_is_left_behind(fleet: Fleet) -> None:
    """It believes what it knows for nine tenths of a second, and finds the old place closed."""
    with running_node(fleet.dsn) as node, fleet.now.owner() as owner:
        owner.execute("create table t (n int)")
        owner.close()
        async with Client(node.port, fleet.key) as client:
            assert (await client.query("insert into t values (0)")).succeeded
            moving = asyncio.create_task(asyncio.to_thread(fleet.move))
            acknowledged = 1
            while not moving.done():
                acknowledged += (await client.query("insert into t values (1)", timeout_ms=5_000)).succeeded
            await moving
            answer = await client.query("select count(*)::int as n from t")
            assert answer.value == acknowledged
