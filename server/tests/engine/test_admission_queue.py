"""Who gets a slot and who waits: limits, fairness, refusals, and that no slot is ever lost."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError
from plainsql_server.engine.pool import admission_queue

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Who:
    """Somebody at the admission: an organization and one of its pools, with their limits."""

    organization: str
    limit: int
    pool: str
    pool_limit: int


@dataclass(frozen=True)
class Slot:
    """A slot that somebody has now."""

    who: Who
    started_s: float


class AdmissionQueue:
    """The admission as the tests speak of it: by name, and with slots to hold in one's hand."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.real = admission_queue.AdmissionQueue(max_running, max_waiting)
        self._queues: dict[str, admission_queue.TenantQueue] = {}

    @property
    def running(self) -> int:
        return self.real.running

    @property
    def waiting(self) -> int:
        return self.real.waiting

    def try_acquire(self, who: Who) -> Slot | None:
        return Slot(who, time.monotonic()) if has_acquired(self.real, self._queue(who)) else None

    async def acquire(self, who: Who, deadline: Deadline) -> Slot:
        await self.real.acquire(self._queue(who), deadline)
        return Slot(who, time.monotonic())

    def release(self, slot: Slot) -> None:
        self.real.release(self._queue(slot.who), time.monotonic() - slot.started_s)

    def _queue(self, who: Who) -> admission_queue.TenantQueue:
        if who.pool not in self._queues:
            self._queues[who.pool] = self.real.tenant_queue(who.organization, who.pool_limit)
        self.real.limit(self._queues[who.pool], who.limit)
        return self._queues[who.pool]


def queue(organization: str = "a", *, pool: str = "", limit: int = 100, pool_limit: int = 100) -> Who:
    return Who(organization, limit, pool or organization, pool_limit)


def has_acquired(admission: admission_queue.AdmissionQueue, queue: admission_queue.TenantQueue) -> bool:
    """Acquires a slot if one is free: for a request whose deadline has passed, which cannot wait for one."""
    try:
        admission.acquire(queue, Deadline(0.0)).send(None)
    except StopIteration:
        return True
    except LimitError:
        return False
    raise AssertionError("it waits")


def far() -> Deadline:
    return Deadline.after_ms(60_000)


def entered(admission: AdmissionQueue, who: Who) -> Slot:
    slot = admission.try_acquire(who)
    assert slot is not None
    return slot


async def wait_in(admission: AdmissionQueue, who: Who, deadline: Deadline | None = None) -> "asyncio.Task[Slot]":
    """A task that stands in the queue, or has been answered, when this returns."""
    task = asyncio.create_task(admission.acquire(who, deadline or far()))
    await asyncio.sleep(0)
    return task


async def settle() -> None:
    """Lets everybody who was woken run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_admission_queue_grants_slots_at_once() -> None:
    admission = AdmissionQueue(4, 10)
    slot = await admission.acquire(queue(), far())
    assert admission.running == 1
    admission.release(slot)
    assert admission.running == 0


async def test_a_cell_runs_no_more_than_its_limit() -> None:
    admission = AdmissionQueue(3, 10)
    for name in "abc":
        entered(admission, queue(name))
    assert admission.try_acquire(queue("d")) is None


async def test_an_organization_runs_no_more_than_its_limit() -> None:
    admission = AdmissionQueue(100, 10)
    for _ in range(3):
        entered(admission, queue(limit=3))
    assert admission.try_acquire(queue(limit=3, pool="another")) is None
    entered(admission, queue("b"))


async def test_a_pool_runs_no_more_than_its_limit() -> None:
    admission = AdmissionQueue(100, 10)
    for _ in range(2):
        entered(admission, queue(pool="p", pool_limit=2))
    assert admission.try_acquire(queue(pool="p", pool_limit=2)) is None
    entered(admission, queue(pool="q", pool_limit=2))


async def test_a_single_organization_leaves_slots_for_a_second() -> None:
    admission = AdmissionQueue(8, 100)
    while admission.try_acquire(queue("flood")):
        pass
    assert admission.running < 8
    entered(admission, queue("quiet"))


async def test_slots_rotate_among_organizations_whatever_their_queues() -> None:
    admission = AdmissionQueue(2, 1_000)
    slots = [entered(admission, queue("x")), entered(admission, queue("y"))]
    waiting = [await wait_in(admission, queue("flood")) for _ in range(50)]
    waiting += [await wait_in(admission, queue(name)) for name in "bc"]
    served: list[str] = []
    for _ in range(4):
        admission.release(slots.pop(0))
        await settle()
        new = [task for task in waiting if task.done()]
        slots += [task.result() for task in new]
        served += [task.result().who.organization for task in new]
        waiting = [task for task in waiting if not task.done()]
    assert served == ["flood", "b", "c", "flood"]
    for task in waiting:
        task.cancel()


async def test_an_organizations_requests_are_served_first_in_first_out() -> None:
    admission = AdmissionQueue(2, 100)
    slot = entered(admission, queue())
    waiting = [await wait_in(admission, queue()) for _ in range(5)]
    for task in waiting:
        assert not task.done()
        admission.release(slot)
        await settle()
        slot = task.result()
    admission.release(slot)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_no_request_overtakes_its_organizations_queue() -> None:
    admission = AdmissionQueue(2, 100)
    slot = entered(admission, queue())
    first = await wait_in(admission, queue())
    admission.release(slot)
    second = await wait_in(admission, queue())
    assert first.done()
    assert not second.done()
    second.cancel()


async def test_a_full_queue_rejects_at_once_with_a_retry_time() -> None:
    admission = AdmissionQueue(1, 2)
    entered(admission, queue())
    waiting = [await wait_in(admission, queue()), await wait_in(admission, queue("b"))]
    with pytest.raises(LimitError) as refused:
        await asyncio.wait_for(admission.acquire(queue("c"), far()), 0.5)
    assert refused.value.code == "overloaded"
    assert refused.value.retryable
    assert refused.value.retry_after_ms
    assert admission.waiting == 2
    for task in waiting:
        task.cancel()


async def test_an_organization_that_fills_the_queue_does_not_exclude_others() -> None:
    admission = AdmissionQueue(2, 10)
    entered(admission, queue("flood"))
    quiet = entered(admission, queue("quiet"))
    flood = [await wait_in(admission, queue("flood")) for _ in range(20)]
    assert any(task.done() and task.exception() for task in flood)
    waiting = await wait_in(admission, queue("quiet"))
    assert not waiting.done()
    admission.release(quiet)
    await settle()
    assert isinstance(waiting.result(), Slot)
    for task in flood:
        task.cancel()


async def test_a_request_that_cannot_start_before_its_deadline_is_rejected_at_once() -> None:
    admission = AdmissionQueue(1, 1_000)
    for _ in range(200):
        slot = entered(admission, queue())
        admission.release(replace(slot, started_s=slot.started_s - 1))
    entered(admission, queue())
    refused = await wait_in(admission, queue(), Deadline.after_ms(500))
    await settle()
    # No timer was waited for.
    assert refused.done()
    error = refused.exception()
    assert isinstance(error, LimitError)
    assert error.code == "overloaded"
    assert admission.waiting == 0


async def test_a_waiter_is_rejected_at_its_deadline() -> None:
    admission = AdmissionQueue(1, 10)
    slot = entered(admission, queue())
    with pytest.raises(LimitError) as refused:
        await admission.acquire(queue(), Deadline.after_ms(50))
    assert refused.value.code == "overloaded"
    assert admission.waiting == 0
    admission.release(slot)
    entered(admission, queue())


async def test_a_cancelled_waiter_makes_way_for_the_next() -> None:
    admission = AdmissionQueue(1, 10)
    slot = entered(admission, queue())
    first, second = await wait_in(admission, queue()), await wait_in(admission, queue())
    first.cancel()
    await settle()
    assert first.cancelled()
    assert admission.waiting == 1
    admission.release(slot)
    await settle()
    assert second.done()


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next() -> None:
    admission = AdmissionQueue(1, 10)
    slot = entered(admission, queue())
    first, second = await wait_in(admission, queue()), await wait_in(admission, queue())
    admission.release(slot)
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.done()
    admission.release(second.result())
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_waiter_cancelled_just_before_its_slot_is_skipped() -> None:
    admission = AdmissionQueue(1, 10)
    slot = entered(admission, queue())
    first, second = await wait_in(admission, queue()), await wait_in(admission, queue())
    other = await wait_in(admission, queue("b"))
    first.cancel()
    admission.release(slot)
    await settle()
    assert first.cancelled()
    (served,) = [task for task in (second, other) if task.done()]
    admission.release(served.result())
    await settle()
    assert second.done()
    assert other.done()
    assert admission.waiting == 0


async def test_a_request_that_arrives_while_another_is_cancelled_and_the_last_slot_is_released_is_served() -> None:
    admission = AdmissionQueue(4, 10)
    slots = [entered(admission, queue(pool_limit=2)), entered(admission, queue(pool_limit=2))]
    gives_up = await wait_in(admission, queue(pool_limit=2))
    # All in one tick, as on a busy machine. The newcomer runs first, and finds somebody in line who is no more.
    newcomer = asyncio.create_task(admission.acquire(queue(pool_limit=2), far()))
    gives_up.cancel()
    for slot in slots:
        admission.release(slot)
    await settle()
    assert gives_up.cancelled()
    assert newcomer.done()
    assert (admission.running, admission.waiting) == (1, 0)


async def test_a_waiter_that_times_out_as_its_slot_is_granted_is_rejected() -> None:
    admission = AdmissionQueue(1, 10)
    slot = entered(admission, queue())
    first = await wait_in(admission, queue(), Deadline.after_ms(20))
    second = await wait_in(admission, queue())
    # Both timers are due when the loop wakes: the deadline's first, then the end of the slot.
    asyncio.get_running_loop().call_later(0.021, admission.release, slot)
    await asyncio.to_thread(lambda: None)
    loop_blocked_until = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < loop_blocked_until:
        pass
    await asyncio.wait([first, second], timeout=30)
    assert isinstance(first.exception(), LimitError)
    assert isinstance(second.result(), Slot)


async def test_a_full_pool_does_not_delay_the_organizations_other_pools() -> None:
    admission = AdmissionQueue(10, 10)
    slot = entered(admission, queue(pool="p", pool_limit=1))
    blocked = await wait_in(admission, queue(pool="p", pool_limit=1))
    free = await wait_in(admission, queue(pool="q", pool_limit=1))
    assert free.done()
    assert not blocked.done()
    admission.release(slot)
    await settle()
    assert blocked.done()


async def test_slots_of_one_organization_rotate_among_its_pools() -> None:
    admission = AdmissionQueue(2, 100)
    slot = entered(admission, queue(pool="p"))
    waiting = [await wait_in(admission, queue(pool=pool)) for pool in "pppq"]
    served = []
    for _ in range(2):
        admission.release(slot)
        await settle()
        (task,) = [task for task in waiting if task.done()]
        waiting.remove(task)
        slot = task.result()
        served.append(slot.who.pool)
    assert served == ["p", "q"]
    for task in waiting:
        task.cancel()


async def test_one_released_slot_admits_every_request_that_can_start() -> None:
    admission = AdmissionQueue(10, 10)
    slots = [entered(admission, queue(pool="p", limit=2)), entered(admission, queue(pool="q", limit=2))]
    waiting = [await wait_in(admission, queue(pool="p", limit=2)) for _ in range(2)]
    for slot in slots:
        admission.release(slot)
    await settle()
    assert all(task.done() for task in waiting)


def test_idle_organizations_take_no_memory() -> None:
    admission = AdmissionQueue(10, 10)
    for number in range(100):
        admission.release(entered(admission, queue(f"organization {number}")))
    admission.real.forget_the_idle(set())
    kept = [value for value in vars(admission.real).values() if isinstance(value, dict) and value]
    assert kept == []


@pytest.mark.parametrize(("limit", "started"), [(100, 4), (2, 1)])
async def test_a_raised_limit_starts_those_who_wait_within_what_their_tier_allows(limit: int, started: int) -> None:
    admission = AdmissionQueue(2, 100)
    held = entered(admission, queue(limit=limit))
    waiting = [await wait_in(admission, queue(limit=limit)) for _ in range(10)]
    # No request comes after it that would state the organization's limit again.
    admission.real.resize(10)
    admission.real.serve()
    await settle()
    assert sum(task.done() for task in waiting) == started
    assert admission.running == 1 + started
    # With the lower limit again, it may have one: none starts until all but that one have ended.
    admission.real.resize(2)
    for slot in [held, *(task.result() for task in waiting if task.done())][:-1]:
        admission.release(slot)
    await settle()
    assert (admission.running, sum(task.done() for task in waiting)) == (1, started)
    for task in waiting:
        task.cancel()


class AdmissionMachine(RuleBasedStateMachine):
    """Comings, goings and changes of mind in every order, against the rules that must always hold."""

    max_running, pool_limit, limit = 4, 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.admission = AdmissionQueue(self.max_running, 1_000)
        self.waiting: list[tuple[Who, asyncio.Task[Slot]]] = []
        self.slots: list[Slot] = []

    def teardown(self) -> None:
        for slot in self.slots:
            self.admission.release(slot)
        self.slots = []
        for _, task in self.waiting:
            task.cancel()
        self.settle()
        self.loop.close()

    def settle(self) -> None:
        self.loop.run_until_complete(settle())
        done = [task for _, task in self.waiting if task.done()]
        self.waiting = [(who, task) for who, task in self.waiting if not task.done()]
        self.slots += [task.result() for task in done if not task.cancelled()]

    @rule(organization=st.sampled_from("abc"), pool=st.sampled_from("12"))
    def ask(self, organization: str, pool: str) -> None:
        who = Who(organization, self.limit, organization + pool, self.pool_limit)
        self.waiting.append((who, self.loop.create_task(self.admission.acquire(who, far()))))
        self.settle()

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.admission.release(self.slots.pop(data.draw(st.integers(0, len(self.slots) - 1))))
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        _, task = data.draw(st.sampled_from(self.waiting))
        task.cancel()
        self.settle()

    @precondition(lambda self: self.slots and self.waiting)
    @rule(data=st.data(), release_first=st.booleans(), another_comes=st.booleans())
    def release_while_somebody_gives_up(self, data: st.DataObject, release_first: bool, another_comes: bool) -> None:
        slot = self.slots.pop(data.draw(st.integers(0, len(self.slots) - 1)))
        who, task = data.draw(st.sampled_from(self.waiting))
        if another_comes:
            self.waiting.append((who, self.loop.create_task(self.admission.acquire(who, far()))))
        if release_first:
            self.admission.release(slot)
        task.cancel()
        if not release_first:
            self.admission.release(slot)
        self.settle()

    @invariant()
    def counts_are_true(self) -> None:
        assert self.admission.running == len(self.slots)
        assert self.admission.waiting == len(self.waiting)

    @invariant()
    def limits_hold(self) -> None:
        assert len(self.slots) <= self.max_running
        assert max(self.held_by_organization().values(), default=0) <= self.limit
        assert max(self.held_by_pool().values(), default=0) <= self.pool_limit

    @invariant()
    def no_startable_request_waits(self) -> None:
        half = self.max_running // 2
        for who, _ in self.waiting:
            assert (
                len(self.slots) == self.max_running
                or self.held_by_organization()[who.organization] >= min(self.limit, half)
                or self.held_by_pool()[who.pool] >= self.pool_limit
            )

    def held_by_organization(self) -> Counter[str]:
        return Counter(slot.who.organization for slot in self.slots)

    def held_by_pool(self) -> Counter[str]:
        return Counter(slot.who.pool for slot in self.slots)


TestAdmissionQueueMachine = AdmissionMachine.TestCase
TestAdmissionQueueMachine.settings = settings(
    max_examples=60, stateful_step_count=30, report_multiple_bugs=False, database=None
)


async def test_long_slots_of_another_tenant_do_not_cause_rejections_of_short_ones() -> None:
    admission = AdmissionQueue(64, 1_000)
    outsider, own = queue("outsider"), queue("own", pool_limit=2)
    for _ in range(200):
        admission.release(replace(entered(admission, outsider), started_s=time.monotonic() - 30))
    held = [entered(admission, own), entered(admission, own)]
    waiting = [asyncio.create_task(admission.acquire(own, Deadline.after_ms(1_000))) for _ in range(20)]
    await asyncio.sleep(0)
    assert admission.waiting == 20
    for slot in held:
        admission.release(slot)
    for task in waiting:
        admission.release(await task)
    assert admission.running == 0
