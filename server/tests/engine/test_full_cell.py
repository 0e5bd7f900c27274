"""What the admission queue expects of a cell whose slots are all in use."""

import asyncio

import pytest

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError
from plainsql_server.engine.pool.admission_queue import AdmissionQueue, TenantQueue

pytestmark = pytest.mark.unit

HELD_S = 5.0


@pytest.fixture
def admission() -> AdmissionQueue:
    return AdmissionQueue(64, 1_000)


@pytest.fixture
def busy(admission: AdmissionQueue) -> TenantQueue:
    """One of two that hold all slots, for five seconds each, so that one is released every 0.08 s."""
    first, second = (queue_of(admission, name) for name in ("a", "b"))
    for _ in range(200):
        assert admission.take_free(first)
        admission.release(first, HELD_S)
    assert sum(admission.take_free(each) for each in (first, second) for _ in range(32)) == 64
    return first


def queue_of(admission: AdmissionQueue, organization: str, max_running: int = 100) -> TenantQueue:
    queue = admission.tenant_queue(organization, max_running)
    admission.limit(queue, max_running)
    return queue


async def test_a_request_may_wait_for_a_slot_that_is_free_before_its_deadline(
    admission: AdmissionQueue, busy: TenantQueue
) -> None:
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    admission.enqueue(queue_of(admission, "quiet", max_running=1), place, Deadline.after_ms(1_000))
    admission.release(busy, HELD_S)
    assert place.done()


async def test_an_organization_whose_own_requests_take_long_may_wait_for_others_that_do_not(
    admission: AdmissionQueue,
) -> None:
    others, slow = queue_of(admission, "others"), queue_of(admission, "slow", max_running=4)
    for _ in range(200):
        assert admission.take_free(slow)
        admission.release(slow, HELD_S)
    for _ in range(2_000):
        assert admission.take_free(others)
        admission.release(others, 0.003)
    more = queue_of(admission, "more")
    assert sum(admission.take_free(each) for each in (others, more) for _ in range(32)) == 64
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # It has none running, and one of the others is over at once.
    admission.enqueue(slow, place, Deadline.after_ms(1_000))
    admission.release(others, 0.003)
    assert place.done()


@pytest.mark.usefixtures("busy")
async def test_a_request_that_would_have_to_wait_for_longer_is_refused(admission: AdmissionQueue) -> None:
    quiet = queue_of(admission, "quiet")
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(LimitError, match="could not start before its deadline"):
        admission.enqueue(quiet, place, Deadline.after_ms(80))
