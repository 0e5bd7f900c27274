"""Two-phase commit and the directory, with a relay between it and the data plane: what the decision costs, and what
becomes of one that is stored when the directory dies before it has said so.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from server.tests.consistency.faults import wait_until
from server.tests.consistency.two_cells import SIDES, TwoCells, send, serving, stored, two_cells
from server.tests.end_to_end.relay import Cut, Relay
from server.tests.load import STALL_S, Node
from server.tests.postgres import SUPERUSER

BOUND_S = 10 + 4 * STALL_S
# A role of its own: the relay lets the operator's pass.
ROLE = "node"
DECISION = b"SET state = 'committed' WHERE"
TRIES = 8

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def two() -> Iterator[TwoCells]:
    with two_cells() as running:
        running.make_tables()
        with running.directory.postgres.connect() as admin:
            admin.execute(f"create role {ROLE} superuser login".encode())
        yield running


@contextmanager
def relayed(two: TwoCells) -> Iterator[tuple[Relay, Node]]:
    """A data plane of one process that reaches the directory through a relay."""
    socket_dir = two.directory.postgres.socket_dir
    with tempfile.TemporaryDirectory(prefix="plainsql-test-") as folder, Relay(Path(folder), socket_dir) as relay:
        dsn = two.directory_dsn.replace(socket_dir, folder).replace(f"user={SUPERUSER}", f"user={ROLE}")
        with serving(replace(two, directory_dsn=dsn), workers=1) as node:
            yield relay, node


def die_at_the_decision(two: TwoCells, relay: Relay) -> Callable[[], bool]:
    """The directory dies when it has stored the next decision, without a response. Tells whether it
    is dead.
    """
    is_dead = threading.Event()

    def die() -> None:
        two.directory.kill()
        is_dead.set()

    relay.cuts.append(Cut(DECISION, forward=True, answer=b"UPDATE 1", then=die))
    return is_dead.is_set


async def test_a_decision_stands_if_its_response_is_lost(two: TwoCells) -> None:
    with relayed(two) as (relay, node):
        is_dead = die_at_the_decision(two, relay)
        answer = await send(node, two, 1, timeout_ms=1_500)
        assert is_dead()
        assert (answer.status, answer.code, answer.outcome) == (503, "connection_lost", "unknown")
        assert len(two.prepared()) == 2
        await asyncio.to_thread(two.directory.start)
        two.wait_until_settled(2 * BOUND_S)
    assert stored(two, 1) == [True, True]


async def test_a_lost_response_to_a_decision_is_read_again_if_the_directory_recovers_in_time(two: TwoCells) -> None:
    with relayed(two) as (relay, node):
        is_dead = die_at_the_decision(two, relay)
        request = asyncio.create_task(send(node, two, 2, timeout_ms=25_000))
        await wait_until(is_dead)
        await asyncio.to_thread(two.directory.start)
        answer = await request
        assert answer.succeeded, answer.body
        assert stored(two, 2) == [True, True]
        two.wait_until_settled(2 * BOUND_S)


@pytest.mark.parametrize(("read_only", "round_trips"), [(False, 6), (True, 4)], ids=["writing", "reading"])
async def test_a_transaction_makes_few_directory_queries(two: TwoCells, *, read_only: bool, round_trips: int) -> None:
    """The record, the decision and its end; and each time whether the connection still works."""
    statements = [{"database": side, "sql": "select 1"} for side in SIDES]
    counted = []
    with relayed(two) as (relay, node):
        async with node.client(two.key) as client:
            for _ in range(TRIES):
                relay.bursts.clear()
                await client.post("/v1/transaction", {"statements": statements, "read_only": read_only})
                assert (await client.answer()).succeeded
                counted.append(len(relay.bursts))
    # Others in the process ask, too, now and then.
    assert min(counted) == round_trips
