"""What an organization pays for connections that it loses again and again."""

import asyncio

import pytest

from plainsql_server.core.clock import Deadline
from plainsql_server.engine.pool import admission_queue
from plainsql_server.engine.pool.admission_queue import AdmissionQueue, TenantQueue
from plainsql_server.engine.pool.planner import Planner

pytestmark = pytest.mark.unit


class PenalizedCell:
    """An admission queue with a planner, and an organization that has lost as many connections as cost nothing."""

    def __init__(self, slots: int) -> None:
        self.planner = Planner(64)
        self.admission = AdmissionQueue(8, 100, self.planner)
        self.queue = self.database("loses", slots)
        for _ in range(8):
            self.lose(self.queue)
            self.give(self.queue, 1)

    def database(self, organization: str, slots: int) -> TenantQueue:
        """A database with so many connections."""
        queue = self.admission.tenant_queue(organization, 16)
        self.admission.limit(queue, 100)
        self.give(queue, slots)
        return queue

    def give(self, queue: TenantQueue, slots: int) -> None:
        self.planner.give_back(queue, -slots)
        for _ in range(slots):
            self.planner.opened(queue)

    def lose(self, queue: TenantQueue) -> None:
        """A request loses its connection, as `Pool.discard` does it."""
        assert self.admission.take_free(queue)
        self.planner.closed(queue)
        self.planner.give_back(queue, 1)
        self.admission.release_with_penalty(queue, 0.001)

    async def wait(self, queue: TenantQueue) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.admission.acquire(queue, Deadline.after_ms(60_000)))
        await asyncio.sleep(0)
        return task


@pytest.fixture
def long_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """So long that it is not over before a test on a busy machine has looked."""
    monkeypatch.setattr(admission_queue, "_PENALTY_S", 1.0)


@pytest.mark.usefixtures("long_penalty")
async def test_a_penalty_is_the_organizations_and_the_databases_other_connections_go_on() -> None:
    cell = PenalizedCell(slots=3)
    queue, organization = cell.queue, cell.queue.organization
    cell.lose(queue)
    assert (queue.slots, queue.running, organization.running, cell.admission.running) == (2, 0, 1, 1)
    for _ in range(2):
        assert cell.admission.take_free(queue)
    # Both connections are in use, and the organization pays for the third of its four slots.
    assert not cell.admission.take_free(queue)
    other_database = cell.database("loses", 2)
    assert cell.admission.take_free(other_database)
    assert not cell.admission.take_free(other_database)
    waiting = await cell.wait(other_database)
    assert not waiting.done()
    # Nothing is released: the end of the penalty serves the one that waits.
    async with asyncio.timeout(30):
        await waiting
    assert (queue.running, other_database.running, organization.running, cell.admission.running) == (2, 2, 4, 4)


@pytest.mark.usefixtures("long_penalty")
async def test_the_end_of_a_penalty_frees_a_slot_of_the_cell() -> None:
    cell = PenalizedCell(slots=1)
    cell.lose(cell.queue)
    others = [cell.database(f"other {number}", 4) for number in range(2)]
    taken = [queue for queue in others for _ in range(4) if cell.admission.take_free(queue)]
    assert len(taken) == 7
    waiting = await cell.wait(others[1])
    assert not waiting.done()
    async with asyncio.timeout(30):
        await waiting
    assert (cell.admission.running, cell.queue.organization.running) == (8, 0)


async def test_a_slot_that_repeatedly_loses_its_connection_is_penalized() -> None:
    admission = AdmissionQueue(max_running=4, max_waiting=10)
    queue, other = admission.tenant_queue("loses", 4), admission.tenant_queue("other", 4)
    for each in (queue, other):
        admission.limit(each, 4)
    for _ in range(8):
        assert admission.take_free(queue)
        admission.release_with_penalty(queue, 0.001)
        assert admission.running == 0, "a few are lost at once when a server restarts"
    assert admission.take_free(queue)
    admission.release_with_penalty(queue, 0.001)
    assert admission.running == 1
    assert admission.take_free(other)
    admission.release_with_penalty(other, 0.001)
    assert admission.running == 1, "others pay for their own"
    async with asyncio.timeout(30):
        while admission.running:  # noqa: ASYNC110  # a timer is waited for
            await asyncio.sleep(0.01)
