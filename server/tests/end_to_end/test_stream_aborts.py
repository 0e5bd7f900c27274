"""The neighbour probe: whose transactions fail because a stream of another tenant's stands still.

Writers in two databases of one cell run all the while; what stands still begins amid them, as it does for customers:
with no serializable writer about, every snapshot is safe at once and harms nobody, whatever it was asked for.
`PLAINSQL_TEST_NEIGHBOUR_S=10` is the full size.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from plainsql_server.operations.files.cell import CellConfig
from server.tests.cell import Cell, new_cell
from server.tests.end_to_end.test_stream_neighbours import SECONDS, stalled_streams
from server.tests.load import Node, running_node
from server.tests.postgres import SUPERUSER, running_postgres

pytestmark = pytest.mark.slow

STREAMS = 4
_LIMIT_S = 30.0
# Of the neighbour's transactions; about as many are the stalled tenant's.
SPARE_ROWS = 500


@dataclass
class Counted:
    """The neighbour's transactions so far, and those that failed."""

    done: int = 0
    failed: int = 0
    is_over: bool = False


@dataclass(frozen=True)
class Stage:
    """A cell of the test's own, a data plane on it, and the neighbour's database."""

    cell: Cell
    node: Node
    own_dsn: str
    neighbour_dsn: str


def small(root: Path) -> CellConfig:
    """Few connections, so that few transactions fill the engine's room for them, ten of which belong to each."""
    return CellConfig(SUPERUSER, str(root), others={"max_connections": "40", "max_prepared_transactions": "2"})


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with running_postgres(small) as postgres:
        cell = new_cell(postgres, postgres.conninfo)
        own_dsn, neighbour_dsn = cell.customer_dsn(), postgres.fresh_database()
        with psycopg.connect(neighbour_dsn, autocommit=True) as neighbour:
            neighbour.execute("create table neighbour as select g as id, 0 as v from generate_series(1, 10000) g")
            neighbour.execute("alter table neighbour add primary key (id)")
            neighbour.execute("analyze neighbour")
        with psycopg.connect(own_dsn, autocommit=True) as own:
            own.execute("create table churned as select g as id, 0 as v from generate_series(1, 400) g")
            own.execute("grant select on churned to public")
            own.execute("create table held (n int)")
        with running_node(cell.directory_dsn, stream_stall_ms=60_000, cell_max_connections=20) as node:
            yield Stage(cell, node, own_dsn, neighbour_dsn)


async def write_for_ever(dsn: str, counted: Counted, read: str, change: str, number: int) -> None:
    """Short serializable transactions, one after the other, that read and then change a row."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        # Not cancelled: a transaction that fails at that moment would say so in the cancellation's place.
        while not counted.is_over:
            counted.done += 1
            try:
                await connection.execute("begin isolation level serializable")
                await connection.execute(read, {"id": number})
                await connection.execute(change, {"id": number})
                await connection.execute("commit")
            except (psycopg.errors.SerializationFailure, psycopg.errors.OutOfMemory):
                counted.failed += 1
                await connection.execute("rollback")


@asynccontextmanager
async def writers(stage: Stage) -> AsyncIterator[Counted]:
    """Two of the neighbour's, each on a row of its own, and two of the stalled tenant's, which conflict."""
    neighbour, own = Counted(), Counted()
    theirs = ("select v from neighbour where id = %(id)s", "update neighbour set v = v + 1 where id = %(id)s")
    ours = ("select count(*) from churned", "update churned set v = v + 1 where id = %(id)s")
    work = [write_for_ever(stage.neighbour_dsn, neighbour, *theirs, number) for number in (4_000, 8_000)]
    work += [write_for_ever(stage.own_dsn, own, *ours, number) for number in (1, 2)]
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await _more(neighbour, 100)
        yield neighbour
    finally:
        neighbour.is_over = own.is_over = True
        await asyncio.gather(*tasks)


async def abort_rate(counted: Counted, holding: AbstractAsyncContextManager[object]) -> float:
    """The share of the neighbour's transactions that fail while something stands still that began amid the writers."""
    async with holding:
        # An old snapshot does harm when the engine's room for finished transactions is full.
        await _more(counted, SPARE_ROWS)
        done, failed = counted.done, counted.failed
        await asyncio.sleep(SECONDS)
        return (counted.failed - failed) / (counted.done - done)


async def _more(counted: Counted, count: int) -> None:
    until, end_s = counted.done + count, time.monotonic() + _LIMIT_S
    while counted.done < until:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


@asynccontextmanager
async def stalled(stage: Stage) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for client in await stalled_streams(stack, stage.node, stage.cell.key, STREAMS):
            await client.read_head()
            assert client.status == 200
        yield


@asynccontextmanager
async def idle(stage: Stage) -> AsyncIterator[None]:
    """A read-write transaction of the stalled tenant's that does nothing more, straight on the engine.

    It has written, so that its number is in every snapshot of the cell, and the neighbour's old row versions
    stay: these, written by transactions that the engine had to summarize, are what the neighbour then fails because of.
    """
    async with await psycopg.AsyncConnection.connect(stage.own_dsn, autocommit=True) as connection:
        await connection.execute("begin isolation level serializable")
        await connection.execute("insert into held values (1)")
        try:
            yield
        finally:
            await connection.execute("rollback")


@pytest.mark.filterwarnings("ignore:.*no transaction in progress")
async def test_a_stalled_stream_makes_no_neighbours_transaction_fail(stage: Stage) -> None:
    rates = {}
    async with writers(stage) as counted:
        for name, holding in (
            ("alone", nullcontext()),
            ("beside stalled streams", stalled(stage)),
            ("beside an idle read-write transaction", idle(stage)),
        ):
            rates[name] = await abort_rate(counted, holding)
            print(f"neighbour's aborts {name}: {rates[name]:.2%}")
    assert rates["beside stalled streams"] <= rates["alone"] + 0.01
    # The control: what a stream must not be does harm here, and would be noticed.
    assert rates["beside an idle read-write transaction"] > rates["alone"] + 0.05
