"""A transaction over two databases while the cell of one of them changes its leader, and the directory with it: all of
it happens or nothing does, and nothing stays in doubt.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import cells, databases, organizations
from plainsql_server.data_plane.spanning import Step
from plainsql_server.directory.connection import Directory
from server.tests.consistency.faults import wait_until
from server.tests.consistency.two_cells import CRASHING, holding, running_control
from server.tests.failover.ha_cell import HaCell
from server.tests.load import Answer, Node, running_node
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.processes import wait_for

# What is left in doubt is finished by then, once there is a leader again.
BOUND_S = 10
# As long as a request may wait for a leader.
TIMEOUT_MS = 25_000

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Pair:
    """The database `main` on the cell of three machines, `far` on another one, and a data plane that can be held."""

    cell: HaCell
    other: Postgres
    # What each server calls its database.
    main: str
    far: str
    node: Node
    crash_file: Path

    async def send(self, number: int) -> Answer:
        statements = [{"database": each, "sql": f"insert into pairs values ({number})"} for each in ("main", "far")]
        async with self.node.client(self.cell.key) as client:
            await client.post("/v1/transaction", {"statements": statements, "timeout_ms": TIMEOUT_MS})
            return await client.answer()

    def stored(self, number: int) -> list[bool]:
        found = []
        for connection in (self.cell.connect(database=self.main), self.other.connect(database=self.far)):
            with connection as admin:
                found.append(bool(admin.execute("select from pairs where n = %s", (number,)).fetchall()))
        return found

    def in_doubt(self) -> list[Any]:
        """What is prepared, and what has a record that is not freed; or why nobody can tell."""
        try:
            return self._in_doubt()
        except psycopg.OperationalError as error:
            return [error]

    def _in_doubt(self) -> list[Any]:
        found: list[Any] = []
        for connection in (self.cell.connect(), self.other.connect()):
            with connection as admin:
                found += admin.execute("select gid from pg_prepared_xacts").fetchall()
        with psycopg.connect(self.cell.directory_dsn) as directory:
            found += directory.execute("select id from spanning_transactions where freed_at is null").fetchall()
        return found


@pytest.fixture(scope="module")
def pair(cell: HaCell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    crash_file = tmp_path_factory.mktemp("held") / "crash"
    cell.wait_until_whole()
    # The control plane is on this machine as well, and its certificate opens what the data plane's does.
    cell.show("admin")
    with running_postgres() as other, running_control(cell.directory_dsn):
        main, far = asyncio.run(_provision(cell, other))
        settings = {"test_crash_file": crash_file, "test_hold_s": 60, "directory_grace_ms": 60_000}
        with running_node(cell.directory_dsn, CRASHING, cell_max_connections=24, **settings) as node:
            yield Pair(cell, other, main, far, node, crash_file)


async def _provision(cell: HaCell, other: Postgres) -> tuple[str, str]:
    async with Directory.open(cell.directory_dsn) as directory:
        await cells.add(directory, "other", other.conninfo, SUPERUSER)
        acme = await organizations.get(directory, "acme")
        # The cell that is new has the fewest.
        far = await databases.create(directory, acme.id, "far")
        main = await databases.get_by_name(directory, acme.id, "main")
    for connection in (cell.connect(database=main.engine_name), other.connect(database=far.engine_name)):
        with connection as admin:
            admin.execute("create table pairs (n int primary key)")
            admin.execute("grant all on pairs to public")
    return main.engine_name, far.engine_name


@pytest.mark.parametrize("step", [Step.PREPARE_SENT_TO_ALL, Step.DECIDED], ids=lambda step: step.name)
async def test_it_happens_in_both_or_in_none_when_a_leader_dies(pair: Pair, step: Step) -> None:
    await asyncio.to_thread(pair.cell.wait_until_whole)
    with holding(pair.crash_file, step) as is_held:
        request = asyncio.create_task(pair.send(step.value))
        await wait_until(is_held)
        leader = pair.cell.leader()
        leader.kill_postgres()
        await wait_until(lambda: pair.cell.leader() is not leader)
    answer = await request
    wait_for(lambda: not pair.in_doubt(), BOUND_S, lambda: f"in doubt: {pair.in_doubt()}\n{pair.cell.story()}")
    if step is Step.DECIDED:
        assert answer.outcome == "committed", answer.body
    expected = {"committed": ([True] * 2,), "rolled_back": ([False] * 2,), "unknown": ([True] * 2, [False] * 2)}
    assert pair.stored(step.value) in expected[answer.outcome], answer.body
    # The next one has its turn.
    assert (await pair.send(100 + step.value)).succeeded
