"""The engine dies under load, freezes, or leaves orphans: everybody is answered, truthfully, and soon it works again.

`PLAINSQL_TEST_CRASHES=10` is the full size.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from server.tests.cell import Cell, running_cell
from server.tests.load import STALL_S, Answer, Client, Node, new_tag, running_node, size
from server.tests.processes import children_of

pytestmark = pytest.mark.chaos

CRASHES = size("PLAINSQL_TEST_CRASHES", 2)
CLIENTS = 8
TIMEOUT_MS = 2_000
ANSWERED_WITHIN_S = TIMEOUT_MS / 1000 + 1.0
BACK_WITHIN_S = 3.0
# How long load runs before the engine dies, and how long the engine stays away.
QUIET_S = 0.7
DOWN_S = 0.5


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    with running_cell() as running:
        yield running


@pytest.fixture(scope="module")
def node(cell: Cell) -> Iterator[Node]:
    # Shared buffers and connections of a test's cluster are few.
    with running_node(cell.directory_dsn, cell_max_connections=32) as running:
        yield running


@dataclass
class Writer:
    """A client that inserts one number after the other and records each outcome."""

    client: Client
    first: int
    outcomes: dict[int, str] = field(default_factory=dict)
    answers: list[tuple[float, Answer]] = field(default_factory=list)
    stopped: bool = False

    async def run(self) -> None:
        number = self.first
        async with self.client as client:
            while not self.stopped:
                number += 1
                answer = await client.query("insert into acknowledged values ($1)", number, timeout_ms=TIMEOUT_MS)
                self.outcomes[number] = answer.outcome
                self.answers.append((time.monotonic(), answer))
                if not answer.succeeded:
                    # As a polite client would, though sooner.
                    await asyncio.sleep(0.02)

    def succeeded_after(self, since_s: float) -> bool:
        return any(at_s > since_s and answer.succeeded for at_s, answer in self.answers)


async def wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # the condition is about other processes
            await asyncio.sleep(0.01)


async def crash(cell: Cell, writers: list[Writer]) -> float:
    """Kills the engine under load and starts it again; how long after that everybody was served again."""
    began_s = time.monotonic()
    await asyncio.sleep(QUIET_S)
    await wait_until(lambda: all(writer.succeeded_after(began_s) for writer in writers), 10)
    cell.kill()
    await asyncio.sleep(DOWN_S)
    await asyncio.to_thread(cell.start)
    up_s = time.monotonic()
    await wait_until(lambda: all(writer.succeeded_after(up_s) for writer in writers), 20)
    return time.monotonic() - up_s


async def test_killing_postgresql_under_load_hangs_no_request_and_loses_nothing(cell: Cell, node: Node) -> None:
    async with node.client(cell.key) as client:
        assert (await client.query("create table acknowledged (n bigint primary key)")).succeeded
    writers = [Writer(node.client(cell.key), number * 1_000_000) for number in range(CLIENTS)]
    back_s: list[float] = []
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run())
        for _ in range(CRASHES):
            back_s.append(await crash(cell, writers))
        for writer in writers:
            writer.stopped = True
    answers = [answer for writer in writers for _, answer in writer.answers]
    outcomes = {number: outcome for writer in writers for number, outcome in writer.outcomes.items()}
    slowest = max(answers, key=lambda answer: answer.elapsed_s)
    print(
        f"crashes: {CRASHES}, answers {len(answers)}, slowest {slowest.elapsed_s:.3f} s ({slowest.code}),"
        f" back after {', '.join(f'{value:.2f}' for value in back_s)} s,"
        f" outcomes { {outcome: list(outcomes.values()).count(outcome) for outcome in sorted(set(outcomes.values()))} }"
    )
    there = numbers_in(cell)
    assert {number for number, outcome in outcomes.items() if outcome == "committed"} <= there, "lost"
    untouched = {number for number, outcome in outcomes.items() if outcome in ("rolled_back", "not_executed")}
    assert untouched & there == set(), "did something and said that nothing happened"
    assert [answer for answer in answers if not answer.succeeded and not answer.is_refusal()] == [], node.failures()
    assert slowest.elapsed_s <= ANSWERED_WITHIN_S + STALL_S
    assert max(back_s) <= BACK_WITHIN_S + STALL_S


def numbers_in(cell: Cell) -> set[int]:
    with psycopg.connect(cell.customer_dsn()) as database:
        return {row[0] for row in database.execute("select n from acknowledged").fetchall()}


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """The processes do not move for the length of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_a_frozen_postgresql_blocks_no_request_past_its_deadline(cell: Cell) -> None:
    """A host that stalls takes connections and says nothing: both who runs and who comes is answered in time."""
    # Look-ups are remembered for the length of the test: it is the cell that stalls here, not the directory.
    with running_node(cell.directory_dsn, principal_cache_ms=600_000, cell_max_connections=32) as node:
        async with node.client(cell.key) as running, node.client(cell.key) as coming:
            assert (await running.query("select 1")).succeeded
            tag = new_tag()
            await running.send(f"/* {tag} */ select pg_sleep(20)", timeout_ms=700)
            await asyncio.sleep(0.3)
            postmaster = cell.postmaster_pid()
            with stopped([postmaster, *children_of(postmaster)]):
                come, ran = await asyncio.gather(coming.query("select 2", timeout_ms=700), running.answer())
            print(f"frozen: who ran {ran.elapsed_s:.2f} s {ran.code}, who came {come.elapsed_s:.2f} s {come.code}")
            for answer in (come, ran):
                assert answer.status in (200, 503), answer
                assert not answer.succeeded
                assert answer.elapsed_s <= 1.7 + STALL_S
            assert come.outcome == "not_executed", "it had no connection yet"
            assert ran.outcome in ("unknown", "rolled_back")
            assert (await coming.query("select 3 as n", timeout_ms=20_000)).value == 3


async def test_a_statement_that_outlives_its_postmaster_is_answered_within_its_limit(cell: Cell, node: Node) -> None:
    """A backend that computes does not notice, and neither cancel nor terminate can reach it."""
    async with node.client(cell.key) as first:
        # From now on the database is known to hold code, and the node below does not have to wait for that.
        assert (await first.query("do $$ begin end $$")).succeeded
    with running_node(cell.directory_dsn, principal_cache_ms=600_000, cell_max_connections=32) as sure:
        async with sure.client(cell.key) as client:
            await client.send("do $$ begin loop end loop; end $$", timeout_ms=3_000)
            backends = await backends_of(cell)
            os.kill(cell.postmaster_pid(), signal.SIGKILL)
            try:
                answer = await client.answer()
            finally:
                for pid in backends:
                    end_if_there(pid)
                await asyncio.to_thread(cell.start)
            print(f"orphan: answered after {answer.elapsed_s:.2f} s with {answer.code}, {answer.outcome}")
            assert answer.elapsed_s <= 4.0 + STALL_S
            assert answer.outcome in ("unknown", "rolled_back"), answer
            again = await client.query("select 4 as n", timeout_ms=20_000)
            assert again.succeeded, again


async def backends_of(cell: Cell) -> list[int]:
    """The backends that run a block of code, once there is one."""
    running = "select pid from pg_stat_activity where query like 'do %' and state = 'active'"
    with cell.postgres.connect() as admin:
        async with asyncio.timeout(30):
            while not (rows := admin.execute(running).fetchall()):  # noqa: ASYNC110  # another process is watched
                await asyncio.sleep(0.01)
    return [row[0] for row in rows]


def end_if_there(pid: int) -> None:
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGKILL)
