"""A database is moved while transactions write to it and to another one: each is in both, or in neither."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from plainsql_server.control_plane.spanning import Recovery
from plainsql_server.core.observation import Observation
from plainsql_server.directory.connection import Directory
from server.tests.fleet.stage import Fleet
from server.tests.fleet.writers import TABLE
from server.tests.load import Client, running_node, size
from server.tests.operations.stage import Stage

pytestmark = pytest.mark.chaos

MOVES = size("PLAINSQL_TEST_SPANNING_MOVES", 2)
_CLIENTS = 3
_PAUSE_S = 0.05


@dataclass
class Spanned:
    """The reported outcomes of transactions."""

    acknowledged: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    words: Counter[str] = field(default_factory=Counter)


async def _span(port: int, key: str, found: Spanned, stop: asyncio.Event, numbers: "itertools.count[int]") -> None:
    async with Client(port, key) as client:
        while not stop.is_set():
            number = f"s{next(numbers)}"
            statements = [
                {"sql": "insert into written values ($1)", "params": [number], "database": name}
                for name in ("main", "other")
            ]
            await client.post("/v1/transaction", {"statements": statements})
            answer = await client.answer()
            if answer.succeeded:
                found.acknowledged.add(number)
                continue
            found.words[f"{answer.status} {answer.code} {answer.outcome}"] += 1
            if answer.outcome != "unknown":
                found.undone.add(number)
            await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def _spanning(port: int, fleet: Fleet) -> AsyncIterator[Spanned]:
    """Clients at work for the length of the block, and what a control process does for them."""
    found, stop, numbers, failures = Spanned(), asyncio.Event(), itertools.count(), list[Observation]()
    async with Directory.open(fleet.dsn) as directory:
        recovering = asyncio.create_task(Recovery(directory, failures.append).run())
        clients = [asyncio.create_task(_span(port, fleet.key, found, stop, numbers)) for _ in range(_CLIENTS)]
        try:
            yield found
        finally:
            stop.set()
            await asyncio.gather(*clients)
            await _until_nothing_is_in_doubt(fleet)
            recovering.cancel()
            with suppress(asyncio.CancelledError):
                await recovering


async def _until_nothing_is_in_doubt(fleet: Fleet) -> None:
    query = "select from spanning_transactions where freed_at is null"
    async with asyncio.timeout(60):
        while fleet.now.ask(f"select 1 where exists ({query})"):  # noqa: ASYNC110  # another process works
            await asyncio.sleep(0.1)


def _rows(fleet: Fleet, database: str) -> list[str]:
    stage = Stage(fleet.clusters[fleet.cell(database)], fleet.dsn)
    with stage.admin(database) as admin:
        assert admin.execute("select from pg_prepared_xacts where database = current_database()").rowcount == 0
        return [number for (number,) in admin.execute("select n from written")]


async def test_a_transaction_over_a_database_being_moved_is_atomic(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.create, "other")
    with running_node(fleet.dsn) as node:
        async with Client(node.port, fleet.key) as client:
            for name in ("main", "other"):
                assert (await client.query(TABLE, database=name)).succeeded
        async with _spanning(node.port, fleet) as spanned:
            for _ in range(MOVES):
                to = fleet.other()
                await asyncio.to_thread(fleet.move)
                assert fleet.cell() == to
    main, other = _rows(fleet, "main"), _rows(fleet, "other")
    assert Counter(main) == Counter(other)
    assert len(main) == len(set(main))
    assert spanned.acknowledged <= set(main)
    assert not spanned.undone & set(main)
    assert len(spanned.acknowledged) > 10 * MOVES
    print(f"\n{MOVES} moves, {len(spanned.acknowledged)} transactions over two databases, {dict(spanned.words)}")
