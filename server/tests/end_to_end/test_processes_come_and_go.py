"""Data plane processes that start, are killed and stop: their shares of the limits follow, without Redis.

They have a directory of their own, so no other process has a share.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from plainsql_server.core.share import WHOLE
from server.tests.customers import Customers
from server.tests.load import Node, running_node
from server.tests.postgres import Postgres
from server.tests.processes import kill_with_children, wait_for

# The free tier's, less a tenth for the control plane.
LIMIT = 180
_NOTICED_LIMIT_S = 60.0
# As long as no permit is available again.
_MINUTE_S = 60.0
_SHARES = "SELECT share FROM data_processes WHERE left_at IS NULL ORDER BY started_at"
_USED = "SELECT coalesce(sum((value ->> 0)::int), 0) FROM data_processes, jsonb_each(used)"


@dataclass
class Organization:
    """A customer of the free tier, and how many of its requests were accepted."""

    key: str
    began_s: float = field(default_factory=time.monotonic)
    accepted: int = 0

    async def flood(self, *nodes: Node) -> int:
        """Sends requests to each node until it refuses. Returns how many were accepted so far, all nodes together."""
        for node in nodes:
            async with node.client(self.key) as client:
                while (status := (await client.query("select 1")).status) == 200 and self.accepted < 2 * LIMIT:
                    self.accepted += 1
            assert status in (200, 429)
        return self.accepted

    def is_within_a_minute(self) -> bool:
        return time.monotonic() - self.began_s < _MINUTE_S


@dataclass
class World:
    """A directory with a cell, and what it says of the processes."""

    dsn: str
    connection: "psycopg.Connection[tuple[int]]"

    def organization(self, name: str) -> Organization:
        customers = Customers(self.dsn)
        customers.add_organization(name, "free")
        customers.add_database("main", name)
        return Organization(customers.new_key("write", organization=name))

    def shares(self) -> list[int]:
        return [share for (share,) in self.connection.execute(_SHARES)]

    def used(self) -> int:
        ((number,),) = self.connection.execute(_USED).fetchall()
        return number

    def divided_by(self, number: int) -> float:
        """Waits until so many processes have equal shares; how long that took."""
        began_s = time.monotonic()
        wait_for(lambda: self.shares() == [WHOLE // number] * number, _NOTICED_LIMIT_S, lambda: str(self.shares()))
        return time.monotonic() - began_s

    @contextmanager
    def node(self) -> Iterator[Node]:
        with running_node(self.dsn, drain_ms=0) as node:
            yield node


@pytest.fixture
def world(postgres: Postgres) -> Iterator[World]:
    with postgres.swept():
        dsn = postgres.fresh_directory()
        Customers(dsn).add_cell("local", postgres.conninfo)
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield World(dsn, connection)


async def test_the_limit_is_kept_while_processes_start_stop_and_are_killed(world: World) -> None:
    with world.node() as first:
        # A process that is alone has everything as soon as it is ready.
        assert world.shares() == [WHOLE]
        early = world.organization("early")
        assert await early.flood(first) == LIMIT
        with world.node() as second:
            joined_s = world.divided_by(2)
            # The second one leaves out what the first one granted.
            assert await early.flood(first, second) == LIMIT or not early.is_within_a_minute()
            both = world.organization("both")
            assert await both.flood(first, second) == LIMIT
            wait_for(lambda: world.used() >= 2 * LIMIT, _NOTICED_LIMIT_S, lambda: str(world.used()))
            kill_with_children(second.process.pid)
            died_s = world.divided_by(1)
            assert await both.flood(first) == LIMIT or not both.is_within_a_minute()
            assert await world.organization("late").flood(first) == LIMIT
        with world.node() as third:
            world.divided_by(2)
            last = world.organization("last")
            assert await last.flood(third) == LIMIT // 2
            third.stop()
            left_s = world.divided_by(1)
            # A clean stop forgets nothing.
            assert await last.flood(first) == LIMIT or not last.is_within_a_minute()
    print(f"the shares followed {joined_s:.2f} s after a start, {died_s:.2f} after a kill, {left_s:.2f} after a stop")
