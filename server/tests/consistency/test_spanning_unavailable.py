"""Two-phase commit while a part of the service is unavailable or slow at the worst time: reported outcomes are true."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from plainsql_server.data_plane import spanning_lock
from plainsql_server.data_plane.spanning import SpanningStep
from server.tests.cell import Cell
from server.tests.consistency.faults import wait_until
from server.tests.consistency.two_cells import HOLD_S, SIDES, TwoCells, send, serving, stored
from server.tests.load import STALL_S, NoAnswer, Node
from server.tests.postgres import SUPERUSER

# What is left in doubt is finished by then; docs/reference/http.md says so.
BOUND_S = 10 + 4 * STALL_S

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def long_timeout_node(two: TwoCells) -> Iterator[Node]:
    """One that may stand still for a while, as a busy machine makes it, before others take what it has."""
    with serving(two, test_hold_s=10) as running:
        yield running


@pytest.fixture(scope="module")
def earnest_node(two: TwoCells) -> Iterator[Node]:
    """One that has what it has for as long as outside of tests."""
    with serving(two, test_hold_s=spanning_lock.HOLD_S) as running:
        yield running


@pytest.mark.parametrize("step", [SpanningStep.PREPARED, SpanningStep.DECIDED], ids=lambda each: each.name)
async def test_transactions_in_doubt_are_finished_within_the_documented_time(
    two: TwoCells, earnest_node: Node, step: SpanningStep
) -> None:
    number = 80 + step.value
    two.crash_file.write_text(step.name)
    with pytest.raises(NoAnswer):
        await send(earnest_node, two, number, timeout_ms=20_000)
    await asyncio.to_thread(two.wait_until_settled, BOUND_S)
    assert stored(two, number) == [step is SpanningStep.DECIDED] * 2


async def test_a_cell_that_crashes_after_the_decision_commits_when_it_recovers(two: TwoCells, node: Node) -> None:
    with two.holding(SpanningStep.DECIDED) as is_held:
        request = asyncio.create_task(send(node, two, 1, timeout_ms=1_500))
        await wait_until(is_held)
        two.cells[1].kill()
    answer = await request
    assert (answer.status, answer.code, answer.outcome) == (503, "commit_delayed", "committed")
    await asyncio.to_thread(two.cells[1].start)
    two.wait_until_settled(BOUND_S)
    assert stored(two, 1) == [True, True]


async def test_a_crashed_cell_that_recovers_before_the_deadline_is_waited_for(two: TwoCells, node: Node) -> None:
    with two.holding(SpanningStep.DECIDED) as is_held:
        request = asyncio.create_task(send(node, two, 2, timeout_ms=30_000))
        await wait_until(is_held)
        two.cells[0].kill()
    await asyncio.to_thread(two.cells[0].start)
    answer = await request
    assert answer.succeeded, answer.body
    assert stored(two, 2) == [True, True]


async def test_a_cell_that_crashes_before_the_decision_leaves_nothing_half_done(two: TwoCells, node: Node) -> None:
    """It was prepared, so that it can still be committed, and is if the cell is back in time."""
    with two.holding(SpanningStep.PREPARED) as is_held:
        request = asyncio.create_task(send(node, two, 3, timeout_ms=30_000))
        await wait_until(is_held)
        two.cells[1].kill()
        await asyncio.to_thread(two.cells[1].start)
    answer = await request
    two.wait_until_settled(BOUND_S)
    expected = {"committed": [True, True], "rolled_back": [False, False]}
    assert stored(two, 3) == expected[answer.outcome], answer.body


async def test_a_process_that_paused_for_too_long_cannot_commit(two: TwoCells, node: Node) -> None:
    with two.holding(SpanningStep.PREPARED) as is_held:
        request = asyncio.create_task(send(node, two, 4, timeout_ms=30_000))
        await wait_until(is_held)
        # Nobody says that it lives meanwhile.
        await asyncio.to_thread(two.wait_until_settled, HOLD_S + BOUND_S)
        assert stored(two, 4) == [False, False]
    answer = await request
    assert (answer.status, answer.outcome) == (503, "rolled_back")
    assert stored(two, 4) == [False, False]
    # The turn is the next one's.
    assert (await send(node, two, 5)).succeeded


async def test_a_directory_crash_at_the_decision_leaves_the_outcome_unknown_and_the_transaction_atomic(
    two: TwoCells, node: Node
) -> None:
    with two.holding(SpanningStep.PREPARED) as is_held:
        request = asyncio.create_task(send(node, two, 6, timeout_ms=1_500))
        await wait_until(is_held)
        two.directory.kill()
    answer = await request
    assert (answer.status, answer.outcome) == (503, "unknown")
    assert len(two.prepared()) == 2
    await asyncio.to_thread(two.directory.start)
    two.wait_until_settled(2 * BOUND_S)
    assert stored(two, 6) in ([True, True], [False, False])


# A caller is answered by a second after its deadline; and the machine may be busy.
LATE_S = 2.0 + STALL_S


@pytest.mark.parametrize(
    ("step", "code", "outcome"),
    [
        (SpanningStep.BEGUN, "transaction_deadline_exceeded", "rolled_back"),
        (SpanningStep.RUN, "transaction_deadline_exceeded", "rolled_back"),
        (SpanningStep.PREPARED, "commit_delayed", "committed"),
        (SpanningStep.DECIDED, "commit_delayed", "committed"),
    ],
    ids=lambda each: each.name if isinstance(each, SpanningStep) else "",
)
async def test_a_hanging_cell_delays_no_answer_past_its_deadline(
    two: TwoCells, long_timeout_node: Node, step: SpanningStep, *, code: str, outcome: str
) -> None:
    number = 20 + step.value
    async with AsyncExitStack() as stack:
        with two.holding(step) as is_held:
            request = asyncio.create_task(send(long_timeout_node, two, number, timeout_ms=1_500))
            await wait_until(is_held)
            stack.enter_context(two.cells[1].stopped())
        answer = await request
        assert (answer.code, answer.outcome) == (code, outcome)
        assert answer.elapsed_s < 1.5 + LATE_S
    two.wait_until_settled(BOUND_S)
    assert stored(two, number) == [outcome == "committed"] * 2
    # The turn is the next one's.
    assert (await send(long_timeout_node, two, number + 20, timeout_ms=20_000)).succeeded


async def test_a_hanging_cell_beside_a_refusing_one_delays_no_answer_past_its_deadline(
    two: TwoCells, long_timeout_node: Node
) -> None:
    """What is prepared there cannot be undone until it moves again."""
    failing = {"database": SIDES[0], "sql": "create temp table gone ()"}
    async with AsyncExitStack() as stack:
        with two.holding(SpanningStep.UNDOING) as is_held:
            request = asyncio.create_task(send(long_timeout_node, two, 60, timeout_ms=1_500, more=(failing,)))
            await wait_until(is_held)
            stack.enter_context(two.cells[1].stopped())
        answer = await request
        assert answer.outcome == "rolled_back"
        assert answer.elapsed_s < 1.5 + LATE_S
    two.wait_until_settled(BOUND_S)
    assert stored(two, 60) == [False, False]


async def test_a_directory_that_hangs_at_the_decision_delays_no_answer(two: TwoCells, long_timeout_node: Node) -> None:
    async with AsyncExitStack() as stack:
        with two.holding(SpanningStep.PREPARED) as is_held:
            request = asyncio.create_task(send(long_timeout_node, two, 61, timeout_ms=1_500))
            await wait_until(is_held)
            stack.enter_context(two.directory.stopped())
        answer = await request
        assert (answer.status, answer.outcome) == (503, "unknown")
        assert answer.elapsed_s < 1.5 + LATE_S
    two.wait_until_settled(2 * BOUND_S)
    assert stored(two, 61) in ([True, True], [False, False])
    assert (await send(long_timeout_node, two, 62, timeout_ms=20_000)).succeeded


async def test_a_directory_that_hangs_after_the_commits_changes_no_outcome(
    two: TwoCells, long_timeout_node: Node
) -> None:
    async with AsyncExitStack() as stack:
        with two.holding(SpanningStep.COMMITTED) as is_held:
            request = asyncio.create_task(send(long_timeout_node, two, 63, timeout_ms=1_500))
            await wait_until(is_held)
            stack.enter_context(two.directory.stopped())
        answer = await request
        assert answer.succeeded
        assert answer.elapsed_s < 1.5 + LATE_S
    two.wait_until_settled(2 * BOUND_S)
    assert stored(two, 63) == [True, True]


_SLEEP = "perform pg_sleep(new.seconds)"
_SLEEP_UNCANCELLED = f"begin {_SLEEP}; exception when query_canceled then {_SLEEP}; end"


def defer(two: TwoCells, work: str) -> None:
    """Has the second database do some work when a transaction that inserts into `slow` is committed."""
    with two.cells[1].postgres.connect(database=two.names[1]) as admin:
        admin.execute("create table if not exists slow (seconds float)")
        admin.execute("grant all on slow to public")
        admin.execute(
            "create or replace function work() returns trigger language plpgsql"
            f" as $$ begin {work}; return null; end $$".encode()
        )
        admin.execute("drop trigger if exists works on slow")
        admin.execute(
            "create constraint trigger works after insert on slow deferrable initially deferred"
            " for each row execute function work()"
        )


def slow(seconds: float) -> dict[str, Any]:
    return {"database": SIDES[1], "sql": f"insert into slow values ({seconds})"}


def sleeping(two: TwoCells) -> bool:
    with two.cells[1].postgres.connect() as admin:
        return bool(admin.execute("select from pg_stat_activity where wait_event = 'PgSleep'").fetchall())


async def test_deferred_triggers_of_all_databases_run_before_any_is_prepared(two: TwoCells, node: Node) -> None:
    defer(two, _SLEEP)
    request = asyncio.create_task(send(node, two, 70, timeout_ms=20_000, more=(slow(1.5),)))
    await wait_until(lambda: sleeping(two))
    prepared: list[list[str]] = []
    while True:
        found = await asyncio.to_thread(two.prepared)
        if not await asyncio.to_thread(sleeping, two):
            break
        prepared.append(found)
    assert prepared
    assert not any(prepared)
    assert (await request).succeeded
    assert stored(two, 70) == [True, True]


@pytest.mark.parametrize("work", [_SLEEP, _SLEEP_UNCANCELLED], ids=["cancellable", "uncancelled"])
async def test_deferred_triggers_count_against_the_deadline(two: TwoCells, node: Node, work: str) -> None:
    defer(two, work)
    answer = await send(node, two, 71, timeout_ms=1_000, more=(slow(20),))
    assert (answer.code, answer.outcome) == ("transaction_deadline_exceeded", "rolled_back")
    assert answer.elapsed_s < 1 + LATE_S
    two.wait_until_settled(BOUND_S)
    assert stored(two, 71) == [False, False]


def set_standbys(cell: Cell, names: str) -> None:
    with cell.postgres.connect() as admin:
        admin.execute("set synchronous_commit = local")
        admin.execute(f"alter system set synchronous_standby_names = '{names}'".encode())
        admin.execute("select pg_reload_conf()")


def waiting(cell: Cell, roles: str) -> bool:
    """Whether one of these waits for a standby."""
    question = "select from pg_stat_activity where wait_event = 'SyncRep' and usename like %s"
    with cell.postgres.connect() as admin:
        return bool(admin.execute(question, (roles,)).fetchall())


@asynccontextmanager
async def no_standby(cell: Cell) -> AsyncIterator[None]:
    """Commits wait for a standby that is not there, for the length of the block."""
    is_over = threading.Event()

    def commit_again_and_again() -> None:
        with cell.postgres.connect() as admin:
            while not is_over.is_set():
                admin.execute("create table probe ()")
                admin.execute("drop table probe")

    # The engine hears of a setting in its own time; when a commit waits, it has.
    probe = asyncio.create_task(asyncio.to_thread(commit_again_and_again))
    try:
        set_standbys(cell, "nobody")
        await wait_until(lambda: waiting(cell, SUPERUSER))
        yield
    finally:
        is_over.set()
        set_standbys(cell, "")
        await probe


@pytest.mark.parametrize("step", [SpanningStep.BEGUN, SpanningStep.PREPARED], ids=["prepare", "commit"])
async def test_synchronous_commit_off_is_overridden_for_spanning_transactions(
    two: TwoCells, step: SpanningStep
) -> None:
    careless = {"database": SIDES[1], "sql": "set synchronous_commit = off"}
    number = 10 + step.value
    with serving(two, test_hold_s=30) as node:
        async with AsyncExitStack() as stack:
            with two.holding(step) as is_held:
                request = asyncio.create_task(send(node, two, number, timeout_ms=30_000, more=(careless,)))
                await wait_until(is_held)
                await stack.enter_async_context(no_standby(two.cells[1]))
            await wait_until(lambda: request.done() or waiting(two.cells[1], "o\\_%"))
            assert not request.done()
        assert (await request).succeeded
    assert stored(two, number) == [True, True]
