"""Many clients increment one counter: no increment is lost, and trying again is best left to the service.

`PLAINSQL_TEST_INCREMENTS=5000` is the full size, and compares how fast the ways are.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from server.tests.cell import Cell, running_cell
from server.tests.consistency.history import Outcome
from server.tests.consistency.transports import HttpTransport, Statement
from server.tests.load import Node, running_node, size

INCREMENTS = size("PLAINSQL_TEST_INCREMENTS", 120)
FULL_SIZE = 5_000
# The ways take turns, so that a machine that slows down meanwhile slows all of them.
ROUNDS = max(2, INCREMENTS // 250)
CLIENTS = 32
LIMIT_S = 30 + INCREMENTS / 20
INCREMENT = (
    Statement("select n from counters where id = 1"),
    # The work of a transaction. Without it, clients that share their processors with the engine hardly ever meet.
    Statement("select pg_sleep(0.002)"),
    Statement("update counters set n = n + 1 where id = 1"),
)

pytestmark = pytest.mark.timeout(4 * LIMIT_S)


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    with running_cell() as running:
        yield running


@pytest.fixture(scope="module")
def node(cell: Cell) -> Iterator[Node]:
    with running_node(cell.directory_dsn, workers=2, cell_max_connections=24) as running:
        yield running


@pytest.fixture
def dsn(cell: Cell) -> str:
    dsn = cell.customer_dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("drop table if exists counters")
        admin.execute("create table counters (id int primary key, n int not null)")
        admin.execute("insert into counters values (1, 0)")
        admin.execute("grant all on counters to public")
    return dsn


@dataclass
class Count:
    """What increments took, and how they were to be made."""

    name: str
    pause_s: Callable[[int], float]
    fields: dict[str, int]
    increments: int = 0
    elapsed_s: float = 0.0
    attempts: int = 0
    requests: int = 0

    @property
    def per_s(self) -> float:
        return self.increments / self.elapsed_s

    def __str__(self) -> str:
        each = f"{self.attempts / self.increments:.2f} attempts and {self.requests / self.increments:.2f} requests each"
        return f"{self.name}: {self.increments} increments, {self.per_s:.0f}/s, {each}"


def at_once(_: int) -> float:
    return 0.0


def backing_off(failures: int) -> float:
    """As client libraries advise: longer each time, and by chance."""
    longest_s: float = min(1.0, 0.01 * 2.0**failures)
    return longest_s * random.uniform(0.5, 1.0)


async def increment(cell: Cell, node: Node, count: Count, times: int) -> None:
    """So many increments, by clients that send one again until it is committed."""
    due = iter(range(times))

    async def client() -> None:
        transport = HttpTransport(node.client(cell.key), **count.fields)
        for _ in due:
            failures = 0
            while (reply := await transport.run(INCREMENT)).outcome is not Outcome.OK:
                assert reply.complaint == ""
                failures += 1
                await asyncio.sleep(count.pause_s(failures))
            count.requests += 1 + failures
            count.attempts += reply.attempts + failures
        await transport.close()

    began_s = time.monotonic()
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    count.elapsed_s += time.monotonic() - began_s
    count.increments += times


def counted(dsn: str) -> int:
    with psycopg.connect(dsn) as admin:
        row = admin.execute("select n from counters where id = 1").fetchone()
    assert row is not None
    return int(row[0])


async def test_no_increment_is_lost_and_server_retries_outperform_client_retries(
    cell: Cell, node: Node, dsn: str
) -> None:
    service = Count("tried again by the service", backing_off, {})
    hasty = Count("tried again by clients, at once", at_once, {"max_retries": 0})
    backing_off_count = Count("tried again by clients, backing off", backing_off, {"max_retries": 0})
    await increment(cell, node, Count("warm-up", at_once, {}), CLIENTS)
    for _ in range(ROUNDS):
        for count in (service, hasty, backing_off_count):
            await increment(cell, node, count, INCREMENTS // ROUNDS)
    print("", service, hasty, backing_off_count, sep="\n")
    assert counted(dsn) == CLIENTS + 3 * (INCREMENTS // ROUNDS * ROUNDS)
    # The short form takes a second or two, in which a machine with other work to do decides.
    if INCREMENTS >= FULL_SIZE:
        assert service.per_s > max(hasty.per_s, backing_off_count.per_s)
