"""A transaction over two databases while the cell of one of them changes its leader, and the directory with it: all of
it happens or nothing does, and nothing stays in doubt.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import cells, databases, organizations
from plainsql_server.data_plane.spanning import SpanningStep
from plainsql_server.directory.connection import Directory
from server.tests.consistency.faults import wait_until
from server.tests.consistency.two_cells import CRASHING, holding
from server.tests.end_to_end.control import running_control
from server.tests.failover.ha_cell import HaCell
from server.tests.failover.machines import Machine
from server.tests.load import STALL_S, Answer, NoAnswer, Node, running_node
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.processes import kill_with_children, wait_for

# What is left in doubt is finished by then, once there is a leader again.
BOUND_S = 10 + 4 * STALL_S
# As long as a request may wait for a leader.
TIMEOUT_MS = 25_000

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Pair:
    """The database `main` on the cell of three machines, `far` on another one, and a file that holds a data plane."""

    cell: HaCell
    other: Postgres
    # What each server calls its database.
    main: str
    far: str
    crash_file: Path

    @contextmanager
    def serving(self, hold_s: float) -> Iterator[Node]:
        """A data plane whose records are its own for so long without a word."""
        settings = {"test_crash_file": self.crash_file, "test_hold_s": hold_s, "directory_grace_ms": 60_000}
        with running_node(self.cell.directory_dsn, CRASHING, cell_max_connections=24, **settings) as node:
            yield node

    async def send(self, node: Node, number: int) -> Answer:
        statements = [{"database": each, "sql": f"insert into pairs values ({number})"} for each in ("main", "far")]
        async with node.client(self.cell.key) as client:
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

    def kill_leader(self) -> Machine:
        leader = self.cell.leader()
        leader.kill_postgres()
        return leader

    async def until_another_leads(self, than: Machine) -> None:
        await wait_until(lambda: self.cell.leader() is not than)

    def wait_until_settled(self) -> None:
        wait_for(lambda: not self.in_doubt(), BOUND_S, lambda: f"in doubt: {self.in_doubt()}\n{self.cell.story()}")


@pytest.fixture(scope="module")
def pair(cell: HaCell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    crash_file = tmp_path_factory.mktemp("held") / "crash"
    cell.wait_until_whole()
    # The control plane is on this machine as well, and its certificate opens what the data plane's does.
    cell.show("admin")
    with running_postgres() as other, running_control(cell.directory_dsn):
        main, far = asyncio.run(_provision(cell, other))
        yield Pair(cell, other, main, far, crash_file)


async def _provision(cell: HaCell, other: Postgres) -> tuple[str, str]:
    async with Directory.open(cell.directory_dsn) as directory:
        await cells.add(directory, "other", other.conninfo, SUPERUSER)
        acme = await organizations.get(directory, "acme")
        # The cell that is new has the fewest.
        far = await databases.create(directory, acme.id, "far")
        main = await databases.get_named(directory, acme.id, "main")
    for connection in (cell.connect(database=main.engine_name), other.connect(database=far.engine_name)):
        with connection as admin:
            admin.execute("create table pairs (n int primary key)")
            admin.execute("grant all on pairs to public")
    return main.engine_name, far.engine_name


@pytest.mark.parametrize("step", [SpanningStep.PREPARED, SpanningStep.DECIDED], ids=lambda step: step.name)
async def test_a_spanning_transaction_is_atomic_when_a_leader_dies(pair: Pair, step: SpanningStep) -> None:
    await asyncio.to_thread(pair.cell.wait_until_whole)
    with pair.serving(hold_s=60) as node:
        with holding(pair.crash_file, step) as is_held:
            request = asyncio.create_task(pair.send(node, step.value))
            await wait_until(is_held)
            await pair.until_another_leads(pair.kill_leader())
        answer = await request
        # What is prepared is on a standby as well, and the new leader has it.
        assert answer.succeeded, answer.body
        assert pair.stored(step.value) == [True, True]
        pair.wait_until_settled()


async def test_transactions_in_doubt_after_a_failover_are_finished_on_the_new_leader(pair: Pair) -> None:
    await asyncio.to_thread(pair.cell.wait_until_whole)
    with pair.serving(hold_s=1) as node:
        with holding(pair.crash_file, SpanningStep.DECIDED) as is_held:
            request = asyncio.create_task(pair.send(node, 100))
            await wait_until(is_held)
            leader = pair.kill_leader()
            kill_with_children(node.process.pid)
        with pytest.raises(NoAnswer):
            await request
    await pair.until_another_leads(leader)
    pair.wait_until_settled()
    assert pair.stored(100) == [True, True]
    with pair.serving(hold_s=1) as node:
        # The next one has its turn.
        assert (await pair.send(node, 101)).succeeded
