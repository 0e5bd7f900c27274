"""List-append over two databases on two cells: whatever dies meanwhile, at whichever step, it is atomic and in order.

Some transactions span both databases, most stay in one. Worker processes are killed at steps of the protocol, and cells
are killed and started again. `make soak PART=spanning` runs the full sizes: `PLAINSQL_TEST_SPANNING=5000` spanning and
`PLAINSQL_TEST_SPANNING_LOCAL=20000` local transactions, and `PLAINSQL_TEST_STEP_CRASHES=20` crashes at every step; in
the gate there is one at each of a few.

The order of the clock is asked of each database by itself. Between two databases it does not hold for those who read
them one after the other while a commit is on its way; see decision 0015.
"""

import asyncio
import time
from functools import partial

import psycopg
import pytest

from plainsql_server.data_plane.spanning import SpanningStep
from server.tests.consistency.anomalies import AnomalyClass
from server.tests.consistency.checker import check
from server.tests.consistency.faults import kill_engine, wait_until
from server.tests.consistency.history import Append, Outcome, Transaction
from server.tests.consistency.transports import reply_of
from server.tests.consistency.two_cells import (
    SpanningWorkload,
    TwoCells,
    new_workload,
    projected,
    serving,
    torn,
)
from server.tests.load import STALL_S, Answer, Node, size

SPANNING = size("PLAINSQL_TEST_SPANNING", 50)
LOCAL = size("PLAINSQL_TEST_SPANNING_LOCAL", 200)
CRASHES = size("PLAINSQL_TEST_STEP_CRASHES", 1)
# Before, at and after the decision, and where one database has what the other has not.
SOME = (SpanningStep.PREPARE_SENT_TO_ONE, SpanningStep.PREPARED, SpanningStep.DECIDED, SpanningStep.COMMIT_SENT_TO_ONE)
STEPS = tuple(SpanningStep) if CRASHES > 1 else SOME
CONTROL = size("PLAINSQL_TEST_SPANNING_CONTROL", 1_000)
# The search for what the rule prevents ends with the first round that has it.
CONTROL_ROUND = 125
CLIENTS = 12
# A cell is killed with every so manieth crash.
CELL_EVERY = 3
# What a process that died left in doubt is finished by then: a record is held for 1 s here, instead of 5 s.
BOUND_S = 10 + 4 * STALL_S
LIMIT_S = 90 + SPANNING / 10 + LOCAL / 50 + CRASHES * len(STEPS) * 15

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2 * LIMIT_S)]


def require_sound(two: TwoCells, workload: SpanningWorkload, name: str) -> None:
    """Fails unless everything is atomic, in an order, and finished."""
    in_doubt_s = two.wait_until_settled(BOUND_S)
    report = workload.check_history(f"{name}: {workload.spanning} spanning, {workload.local} local")
    clock = [each for each in report.anomalies if each.kind is AnomalyClass.REAL_TIME]
    print(f"settled after {in_doubt_s:.1f} s; seen between two commits of one transaction: {len(clock)} times")
    assert workload.complaints == []
    assert torn(workload.history, two.lists()) == []
    assert [each for each in report.anomalies if each not in clock] == [], report.describe()
    for side in (0, 1):
        alone = check(projected(workload.history, side))
        assert alone.anomalies == (), alone.describe()


def test_acknowledged_commits_must_be_stored() -> None:
    appends = (Append(0, 1), Append(1, 1))
    lost = [Transaction(1, 0, Outcome.INFO, 0, 1, appends)]
    assert torn(lost, {}) == []
    error = {"code": "commit_delayed", "outcome": "committed"}
    reply = reply_of(Answer(503, {"retry-after": "1"}, {"success": False, "error": error}, 0.0))
    described = [Transaction(1, 0, reply.outcome, 0, 1, appends, reply.is_committed)]
    assert torn(described, {}) != []
    assert torn(described, {0: [1], 1: [1]}) == []


async def committed_more(workload: SpanningWorkload) -> None:
    """Waits for the second transaction that spans: the first one may have been on its way to the client."""
    enough = workload.spanning + 2
    await wait_until(lambda: workload.spanning >= enough)


async def test_an_order_explains_what_clients_of_both_databases_saw(two: TwoCells, node: Node) -> None:
    workload = new_workload(two, node.port, CLIENTS)
    await workload.run(lambda: workload.spanning >= SPANNING and workload.local >= LOCAL, LIMIT_S)
    require_sound(two, workload, "two cells")


async def test_a_process_killed_at_any_step_leaves_nothing_half_done(two: TwoCells, node: Node) -> None:
    workload = new_workload(two, node.port, CLIENTS)
    done = asyncio.Event()
    waits_s: list[float] = []
    described: list[str] = []

    async def crash_everywhere() -> None:
        for number, step in enumerate(STEPS * CRASHES):
            two.crash_file.write_text(step.name)
            await wait_until(lambda: not two.crash_file.exists())
            died_s = time.monotonic()
            if number % CELL_EVERY == 0:
                await kill_engine(two.cells[number // CELL_EVERY % 2])
            await committed_more(workload)
            waits_s.append(time.monotonic() - died_s)
            described.append(f"{step.name} {waits_s[-1]:.1f} s")
        await wait_until(lambda: workload.spanning >= SPANNING and workload.local >= LOCAL)
        done.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(workload.run(done.is_set, LIMIT_S))
        group.create_task(crash_everywhere())
    print(f"\n{len(waits_s)} crashes; the next spanning commit after {max(waits_s):.1f} s at most")
    assert max(waits_s) < 2 * BOUND_S, described
    require_sound(two, workload, f"{CRASHES} crashes at each of {len(STEPS)} steps")


async def test_without_the_spanning_lock_the_checker_finds_anomalies(two: TwoCells) -> None:
    with psycopg.connect(two.directory_dsn, autocommit=True) as directory:
        directory.execute("drop index spanning_one_at_a_time")
    try:
        with serving(two, test_overlap=1) as node:
            found = await anomalies_of_overlapping(two, node)
    finally:
        with psycopg.connect(two.directory_dsn, autocommit=True) as directory:
            directory.execute("delete from spanning_transactions")
            directory.execute(
                "create unique index spanning_one_at_a_time on spanning_transactions (organization_id)"
                " where state <> 'waiting' and freed_at is null"
            )
    assert found


async def anomalies_of_overlapping(two: TwoCells, node: Node) -> set[AnomalyClass]:
    """What the first round shows that shows something."""
    for _ in range(0, CONTROL, CONTROL_ROUND):
        workload = new_workload(two, node.port, CLIENTS, timeout_ms=1_500)
        await workload.run(partial(_has_spanned, workload, CONTROL_ROUND), LIMIT_S)
        report = workload.check_history(f"overlapping: {workload.spanning} spanning, {workload.local} local")
        if found := set(report.kinds) - {AnomalyClass.REAL_TIME}:
            return found
    return set()


def _has_spanned(workload: SpanningWorkload, times: int) -> bool:
    return workload.spanning >= times
