"""Data plane processes that start, are killed and stop while clients load them: the limits follow, without Redis.

They have a directory of their own, so no other process has a share. With PLAINSQL_TEST_FULL, each stage lasts some
minutes, and the permits of a minute are compared with the limit from below, too.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from plainsql_server.core.share import WHOLE
from plainsql_server.core.tasks import end
from server.tests.customers import Customers
from server.tests.load import IS_FULL, STALL_S, NoAnswer, Node, running_node
from server.tests.postgres import Postgres
from server.tests.processes import kill_with_children

# The free tier's.
LIMIT = 200
_MINUTE_S = 60.0
_NOTICED_LIMIT_S = 60.0
_STEADY_S = 2 * _MINUTE_S
_SHARES = "SELECT share FROM data_processes WHERE seen_at > now() - interval '15 s' ORDER BY started_at"


@dataclass
class Load:
    """Requests of an organization of the free tier, and when they were accepted."""

    key: str
    accepted: list[float] = field(default_factory=list)
    refused: int = 0

    async def flood(self, *nodes: Node) -> int:
        """Sends requests to these nodes in turn until all refuse. How many were accepted."""
        before = len(self.accepted)
        while any([await self.send(node) for node in nodes]):
            pass
        return len(self.accepted) - before

    async def send(self, node: Node) -> bool:
        async with node.client(self.key) as client:
            status = (await client.query("select 1")).status
        assert status in (200, 429), status
        self.refused += status == 429
        if status == 200:
            self.accepted.append(time.monotonic())
        return status == 200

    async def reaches_the_limit(self) -> None:
        while not self.refused:  # noqa: ASYNC110  # other tasks send
            await asyncio.sleep(0.02)

    def most_in_a_minute(self) -> int:
        """A request is noted as accepted later than it was, by as much as this machine stalls."""
        most = first = 0
        for last, accepted_s in enumerate(self.accepted):
            while accepted_s - self.accepted[first] >= _MINUTE_S - STALL_S:
                first += 1
            most = max(most, last - first + 1)
        return most

    def per_minute(self, since_s: float) -> float:
        """What was accepted per minute since then."""
        return sum(each >= since_s for each in self.accepted) * _MINUTE_S / (time.monotonic() - since_s)


class World:
    """A directory with a cell, the nodes that run, and what the directory says of them."""

    def __init__(self, dsn: str, connection: "psycopg.Connection[tuple[int]]", stack: ExitStack) -> None:
        self.dsn = dsn
        self.connection = connection
        self.nodes: list[Node] = []
        self._stack = stack

    def load(self, name: str) -> Load:
        customers = Customers(self.dsn)
        customers.add_organization(name, "free")
        customers.add_database("main", name)
        return Load(customers.new_key("write", organization=name))

    async def scale(self, number: int) -> None:
        """Starts or stops nodes until there are so many."""
        while len(self.nodes) < number:
            node = await asyncio.to_thread(self._stack.enter_context, running_node(self.dsn, drain_ms=0))
            self.nodes.append(node)
        while len(self.nodes) > number:
            await asyncio.to_thread(self.nodes.pop().stop)

    async def kill(self) -> None:
        await asyncio.to_thread(kill_with_children, self.nodes.pop().process.pid)

    def shares(self) -> list[int]:
        return [share for (share,) in self.connection.execute(_SHARES)]

    async def divided(self) -> float:
        """Waits until the processes have equal shares; how long that took."""
        began_s, number = time.monotonic(), len(self.nodes)
        while (found := self.shares()) != [WHOLE // number] * number:
            assert time.monotonic() < began_s + _NOTICED_LIMIT_S, found
            await asyncio.sleep(0.02)
        return time.monotonic() - began_s

    @asynccontextmanager
    async def under(self, load: Load) -> AsyncIterator[None]:
        """Clients that ask one node after the other."""

        async def ask(number: int) -> None:
            while True:
                number += 1
                node = self.nodes[number % len(self.nodes)]
                try:
                    await load.send(node)
                except (NoAnswer, OSError):
                    # It was stopped or killed just now.
                    assert node not in self.nodes
                await asyncio.sleep(0.1)

        clients = [asyncio.create_task(ask(number)) for number in range(6)]
        try:
            yield
            assert not any(each.done() for each in clients), clients
        finally:
            await end(*clients)


@pytest.fixture
def world(postgres: Postgres) -> Iterator[World]:
    with postgres.swept(), ExitStack() as stack:
        dsn = postgres.fresh_directory()
        Customers(dsn).add_cell("local", postgres.conninfo)
        yield World(dsn, stack.enter_context(psycopg.connect(dsn, autocommit=True)), stack)


@pytest.mark.timeout(1_800 if IS_FULL else 180)
async def test_the_limit_is_kept_while_processes_start_stop_and_are_killed(world: World) -> None:
    await world.scale(2)
    await world.divided()
    load, took_s = world.load("always"), {}
    async with world.under(load):
        await steady(load)
        await world.scale(4)
        took_s["a start"] = await world.divided()
        await load.reaches_the_limit()
        await steady(load)
        await world.kill()
        took_s["a kill"] = await world.divided()
        await steady(load)
        await world.scale(1)
        took_s["a stop"] = await world.divided()
        await steady(load)
    # A permit may be lost with a process that is killed.
    assert 0.98 * LIMIT <= load.most_in_a_minute() <= LIMIT
    print("the shares followed", {name: round(seconds, 2) for name, seconds in took_s.items()})


async def steady(load: Load) -> None:
    """With full sizes, waits until the permits of the stage before are old, and compares what is granted."""
    if not IS_FULL:
        return
    # A minute after the last change, nothing of it counts any more; of a process that was killed, a little later.
    await asyncio.sleep(80)
    since_s = time.monotonic()
    await asyncio.sleep(_STEADY_S)
    print(f"{load.per_minute(since_s):.1f} per minute")
    assert load.per_minute(since_s) >= 0.98 * LIMIT


async def test_new_processes_grant_what_is_left_and_nothing_else(world: World) -> None:
    await world.scale(1)
    used, fresh = world.load("used"), world.load("fresh")
    assert [await used.send(world.nodes[0]) for _ in range(LIMIT // 2)] == [True] * (LIMIT // 2)
    await world.scale(3)
    assert await used.flood(*world.nodes[1:]) == LIMIT // 2
    # A limit that was not touched is there at once, at one node alone, and also when that was killed.
    assert await fresh.flood(world.nodes[2]) == LIMIT
    await world.kill()
    assert await fresh.flood(*world.nodes) == 0


async def test_a_node_has_its_share_when_it_is_ready_and_returns_it_when_it_stops(world: World) -> None:
    """So it serves a transaction over several databases, whose statements run at once, with its first request."""
    await world.scale(1)
    assert world.shares() == [WHOLE]
    await world.scale(2)
    assert world.shares() == [WHOLE // 2] * 2
    await world.scale(1)
    # Nobody has to wait until it expires, or looks at its pid.
    ended = world.connection.execute("SELECT share FROM data_processes WHERE seen_at < now() - interval '15 s'")
    assert ended.fetchall() == [(0,)]
    assert await world.divided() < _NOTICED_LIMIT_S


# Notes how many backends customers' connections still have when a process leaves the list. They end soon after they
# were closed.
_NOTING = """DECLARE
        backends integer;
    BEGIN
        FOR step IN 1..20 LOOP
            PERFORM pg_stat_clear_snapshot();
            SELECT count(*) INTO backends
            FROM pg_stat_activity a JOIN public.databases d ON d.engine_name = a.datname;
            EXIT WHEN backends = 0;
            PERFORM pg_sleep(0.01);
        END LOOP;
        INSERT INTO public.left_with VALUES (backends);
"""


async def test_a_process_that_stops_closes_its_connections_before_others_may_open_as_many(world: World) -> None:
    load = world.load("open")
    await world.scale(1)
    world.connection.execute("CREATE TABLE left_with (backends integer)")
    ((function,),) = world.connection.execute("SELECT pg_get_functiondef('leave_process'::regproc)::text").fetchall()
    world.connection.execute(str(function).replace("BEGIN\n", _NOTING, 1).encode())
    assert await load.send(world.nodes[0])
    backends = "SELECT count(*) FROM pg_stat_activity a JOIN databases d ON d.engine_name = a.datname"
    assert world.connection.execute(backends).fetchall() != [(0,)]
    await world.scale(0)
    assert world.connection.execute("SELECT backends FROM left_with").fetchall() == [(0,)]
