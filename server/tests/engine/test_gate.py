"""Who gets a turn and who waits: limits, fairness, refusals, and that no turn is ever lost."""

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
from plainsql_server.engine.pool import admission_queue as engine_gate

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Who:
    """Somebody at the gate: an organization and one of its pools, with their limits."""

    organization: str
    limit: int
    pool: str
    pool_limit: int


@dataclass(frozen=True)
class Turn:
    """A turn that somebody has now."""

    who: Who
    started_s: float


class Gate:
    """The gate as the tests speak of it: by name, and with turns to hold in one's hand."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.real = engine_gate.Gate(max_running, max_waiting)
        self._parties: dict[str, engine_gate.Party] = {}

    @property
    def running(self) -> int:
        return self.real.running

    @property
    def waiting(self) -> int:
        return self.real.waiting

    def try_enter(self, who: Who) -> Turn | None:
        return Turn(who, time.monotonic()) if self.real.try_enter(self._party(who)) else None

    async def enter(self, who: Who, deadline: Deadline) -> Turn:
        await self.real.enter(self._party(who), deadline)
        return Turn(who, time.monotonic())

    def leave(self, turn: Turn) -> None:
        self.real.leave(self._party(turn.who), turn.started_s)

    def _party(self, who: Who) -> engine_gate.Party:
        if who.pool not in self._parties:
            self._parties[who.pool] = self.real.party(who.organization, who.pool_limit)
        self.real.limit(self._parties[who.pool], who.limit)
        return self._parties[who.pool]


def party(organization: str = "a", *, pool: str = "", limit: int = 100, pool_limit: int = 100) -> Who:
    return Who(organization, limit, pool or organization, pool_limit)


def far() -> Deadline:
    return Deadline.after_ms(60_000)


def entered(gate: Gate, who: Who) -> Turn:
    turn = gate.try_enter(who)
    assert turn is not None
    return turn


async def wait_in(gate: Gate, who: Who, deadline: Deadline | None = None) -> "asyncio.Task[Turn]":
    """A task that stands in the queue, or has been answered, when this returns."""
    task = asyncio.create_task(gate.enter(who, deadline or far()))
    await asyncio.sleep(0)
    return task


async def settle() -> None:
    """Lets everybody who was woken run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_gate_gives_turns_at_once() -> None:
    gate = Gate(4, 10)
    turn = await gate.enter(party(), far())
    assert gate.running == 1
    gate.leave(turn)
    assert gate.running == 0


async def test_a_cell_runs_no_more_than_its_limit() -> None:
    gate = Gate(3, 10)
    for name in "abc":
        entered(gate, party(name))
    assert gate.try_enter(party("d")) is None


async def test_an_organization_runs_no_more_than_its_limit() -> None:
    gate = Gate(100, 10)
    for _ in range(3):
        entered(gate, party(limit=3))
    assert gate.try_enter(party(limit=3, pool="another")) is None
    entered(gate, party("b"))


async def test_a_pool_runs_no_more_than_its_limit() -> None:
    gate = Gate(100, 10)
    for _ in range(2):
        entered(gate, party(pool="p", pool_limit=2))
    assert gate.try_enter(party(pool="p", pool_limit=2)) is None
    entered(gate, party(pool="q", pool_limit=2))


async def test_one_organization_alone_leaves_room_for_a_second() -> None:
    gate = Gate(8, 100)
    while gate.try_enter(party("flood")):
        pass
    assert gate.running < 8
    entered(gate, party("quiet"))


async def test_turns_go_around_the_organizations_whatever_each_has_waiting() -> None:
    gate = Gate(2, 1_000)
    turns = [entered(gate, party("x")), entered(gate, party("y"))]
    waiting = [await wait_in(gate, party("flood")) for _ in range(50)]
    waiting += [await wait_in(gate, party(name)) for name in "bc"]
    served: list[str] = []
    for _ in range(4):
        gate.leave(turns.pop(0))
        await settle()
        new = [task for task in waiting if task.done()]
        turns += [task.result() for task in new]
        served += [task.result().who.organization for task in new]
        waiting = [task for task in waiting if not task.done()]
    assert served == ["flood", "b", "c", "flood"]
    for task in waiting:
        task.cancel()


async def test_within_an_organization_the_first_to_come_is_the_first_to_go() -> None:
    gate = Gate(2, 100)
    turn = entered(gate, party())
    waiting = [await wait_in(gate, party()) for _ in range(5)]
    for task in waiting:
        assert not task.done()
        gate.leave(turn)
        await settle()
        turn = task.result()
    gate.leave(turn)
    assert (gate.running, gate.waiting) == (0, 0)


async def test_nobody_overtakes_the_line_of_their_organization() -> None:
    gate = Gate(2, 100)
    turn = entered(gate, party())
    first = await wait_in(gate, party())
    gate.leave(turn)
    second = await wait_in(gate, party())
    assert first.done()
    assert not second.done()
    second.cancel()


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    gate = Gate(1, 2)
    entered(gate, party())
    waiting = [await wait_in(gate, party()), await wait_in(gate, party("b"))]
    with pytest.raises(LimitError) as refused:
        await asyncio.wait_for(gate.enter(party("c"), far()), 0.5)
    assert refused.value.code == "overloaded"
    assert refused.value.retryable
    assert refused.value.retry_after_ms
    assert gate.waiting == 2
    for task in waiting:
        task.cancel()


async def test_an_organization_that_fills_the_queue_does_not_keep_another_out_of_it() -> None:
    gate = Gate(2, 10)
    entered(gate, party("flood"))
    quiet = entered(gate, party("quiet"))
    flood = [await wait_in(gate, party("flood")) for _ in range(20)]
    assert any(task.done() and task.exception() for task in flood)
    waiting = await wait_in(gate, party("quiet"))
    assert not waiting.done()
    gate.leave(quiet)
    await settle()
    assert isinstance(waiting.result(), Turn)
    for task in flood:
        task.cancel()


@pytest.mark.timing
async def test_what_cannot_start_before_its_deadline_is_refused_at_once() -> None:
    gate = Gate(1, 1_000)
    for _ in range(200):
        turn = entered(gate, party())
        gate.leave(replace(turn, started_s=turn.started_s - 1))
    entered(gate, party())
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(LimitError) as refused:
        await gate.enter(party(), Deadline.after_ms(300))
    assert loop.time() - began_s < 0.2
    assert refused.value.code == "overloaded"
    assert gate.waiting == 0


async def test_who_waits_until_the_deadline_is_refused_then() -> None:
    gate = Gate(1, 10)
    turn = entered(gate, party())
    with pytest.raises(LimitError) as refused:
        await gate.enter(party(), Deadline.after_ms(50))
    assert refused.value.code == "overloaded"
    assert gate.waiting == 0
    gate.leave(turn)
    entered(gate, party())


async def test_who_gives_up_gives_the_place_to_the_next() -> None:
    gate = Gate(1, 10)
    turn = entered(gate, party())
    first, second = await wait_in(gate, party()), await wait_in(gate, party())
    first.cancel()
    await settle()
    assert first.cancelled()
    assert gate.waiting == 1
    gate.leave(turn)
    await settle()
    assert second.done()


async def test_a_turn_that_comes_while_its_taker_gives_up_goes_to_the_next() -> None:
    gate = Gate(1, 10)
    turn = entered(gate, party())
    first, second = await wait_in(gate, party()), await wait_in(gate, party())
    gate.leave(turn)
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.done()
    gate.leave(second.result())
    assert (gate.running, gate.waiting) == (0, 0)


async def test_a_taker_who_gives_up_just_before_the_turn_comes_is_passed_over() -> None:
    gate = Gate(1, 10)
    turn = entered(gate, party())
    first, second = await wait_in(gate, party()), await wait_in(gate, party())
    other = await wait_in(gate, party("b"))
    first.cancel()
    gate.leave(turn)
    await settle()
    assert first.cancelled()
    (served,) = [task for task in (second, other) if task.done()]
    gate.leave(served.result())
    await settle()
    assert second.done()
    assert other.done()
    assert gate.waiting == 0


async def test_who_comes_while_another_gives_up_and_the_last_turn_ends_does_not_wait_for_ever() -> None:
    gate = Gate(4, 10)
    turns = [entered(gate, party(pool_limit=2)), entered(gate, party(pool_limit=2))]
    gives_up = await wait_in(gate, party(pool_limit=2))
    # All in one tick, as on a busy machine. The newcomer runs first, and finds somebody in line who is no more.
    newcomer = asyncio.create_task(gate.enter(party(pool_limit=2), far()))
    gives_up.cancel()
    for turn in turns:
        gate.leave(turn)
    await settle()
    assert gives_up.cancelled()
    assert newcomer.done()
    assert (gate.running, gate.waiting) == (1, 0)


async def test_a_taker_whose_time_runs_out_in_the_tick_of_the_turn_is_refused_properly() -> None:
    gate = Gate(1, 10)
    turn = entered(gate, party())
    first = await wait_in(gate, party(), Deadline.after_ms(20))
    second = await wait_in(gate, party())
    # Both timers are due when the loop wakes: the deadline's first, then the end of the turn.
    asyncio.get_running_loop().call_later(0.021, gate.leave, turn)
    await asyncio.to_thread(lambda: None)
    loop_blocked_until = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < loop_blocked_until:
        pass
    await asyncio.wait([first, second], timeout=1)
    assert isinstance(first.exception(), LimitError)
    assert isinstance(second.result(), Turn)


async def test_a_full_pool_does_not_hold_up_the_organizations_other_pools() -> None:
    gate = Gate(10, 10)
    turn = entered(gate, party(pool="p", pool_limit=1))
    blocked = await wait_in(gate, party(pool="p", pool_limit=1))
    free = await wait_in(gate, party(pool="q", pool_limit=1))
    assert free.done()
    assert not blocked.done()
    gate.leave(turn)
    await settle()
    assert blocked.done()


async def test_turns_of_one_organization_go_around_its_pools() -> None:
    gate = Gate(2, 100)
    turn = entered(gate, party(pool="p"))
    waiting = [await wait_in(gate, party(pool=pool)) for pool in "pppq"]
    served = []
    for _ in range(2):
        gate.leave(turn)
        await settle()
        (task,) = [task for task in waiting if task.done()]
        waiting.remove(task)
        turn = task.result()
        served.append(turn.who.pool)
    assert served == ["p", "q"]
    for task in waiting:
        task.cancel()


async def test_one_end_of_a_turn_serves_everybody_who_has_room() -> None:
    gate = Gate(10, 10)
    turns = [entered(gate, party(pool="p", limit=2)), entered(gate, party(pool="q", limit=2))]
    waiting = [await wait_in(gate, party(pool="p", limit=2)) for _ in range(2)]
    for turn in turns:
        gate.leave(turn)
    await settle()
    assert all(task.done() for task in waiting)


def test_nothing_of_an_organization_is_kept_when_it_is_gone() -> None:
    gate = Gate(10, 10)
    for number in range(100):
        gate.leave(entered(gate, party(f"organization {number}")))
    gate.real.forget_the_idle(set())
    # A compiled object has no __dict__.
    values = [getattr(gate.real, name) for name in dir(gate.real) if not name.startswith("__")]
    kept = [value for value in values if isinstance(value, dict) and value]
    assert kept == []


class GateMachine(RuleBasedStateMachine):
    """Comings, goings and changes of mind in every order, against the rules that must always hold."""

    max_running, pool_limit, limit = 4, 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.gate = Gate(self.max_running, 1_000)
        self.waiting: list[tuple[Who, asyncio.Task[Turn]]] = []
        self.turns: list[Turn] = []

    def teardown(self) -> None:
        for turn in self.turns:
            self.gate.leave(turn)
        self.turns = []
        for _, task in self.waiting:
            task.cancel()
        self.settle()
        self.loop.close()

    def settle(self) -> None:
        self.loop.run_until_complete(settle())
        done = [task for _, task in self.waiting if task.done()]
        self.waiting = [(who, task) for who, task in self.waiting if not task.done()]
        self.turns += [task.result() for task in done if not task.cancelled()]

    @rule(organization=st.sampled_from("abc"), pool=st.sampled_from("12"))
    def ask(self, organization: str, pool: str) -> None:
        who = Who(organization, self.limit, organization + pool, self.pool_limit)
        self.waiting.append((who, self.loop.create_task(self.gate.enter(who, far()))))
        self.settle()

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.gate.leave(self.turns.pop(data.draw(st.integers(0, len(self.turns) - 1))))
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        _, task = data.draw(st.sampled_from(self.waiting))
        task.cancel()
        self.settle()

    @precondition(lambda self: self.turns and self.waiting)
    @rule(data=st.data(), leave_first=st.booleans(), another_comes=st.booleans())
    def leave_while_somebody_gives_up(self, data: st.DataObject, leave_first: bool, another_comes: bool) -> None:
        turn = self.turns.pop(data.draw(st.integers(0, len(self.turns) - 1)))
        who, task = data.draw(st.sampled_from(self.waiting))
        if another_comes:
            self.waiting.append((who, self.loop.create_task(self.gate.enter(who, far()))))
        if leave_first:
            self.gate.leave(turn)
        task.cancel()
        if not leave_first:
            self.gate.leave(turn)
        self.settle()

    @invariant()
    def counts_are_true(self) -> None:
        assert self.gate.running == len(self.turns)
        assert self.gate.waiting == len(self.waiting)

    @invariant()
    def limits_hold(self) -> None:
        assert len(self.turns) <= self.max_running
        assert max(self.held_by_organization().values(), default=0) <= self.limit
        assert max(self.held_by_pool().values(), default=0) <= self.pool_limit

    @invariant()
    def nobody_waits_who_has_room(self) -> None:
        half = self.max_running // 2
        for who, _ in self.waiting:
            assert (
                len(self.turns) == self.max_running
                or self.held_by_organization()[who.organization] >= min(self.limit, half)
                or self.held_by_pool()[who.pool] >= self.pool_limit
            )

    def held_by_organization(self) -> Counter[str]:
        return Counter(turn.who.organization for turn in self.turns)

    def held_by_pool(self) -> Counter[str]:
        return Counter(turn.who.pool for turn in self.turns)


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, report_multiple_bugs=False, database=None
)


async def test_a_strangers_long_turns_do_not_have_ones_own_short_ones_refused() -> None:
    gate = Gate(64, 1_000)
    stranger, own = party("stranger"), party("own", pool_limit=2)
    for _ in range(200):
        gate.leave(replace(entered(gate, stranger), started_s=time.monotonic() - 30))
    held = [entered(gate, own), entered(gate, own)]
    waiting = [asyncio.create_task(gate.enter(own, Deadline.after_ms(1_000))) for _ in range(20)]
    await asyncio.sleep(0)
    assert gate.waiting == 20
    for turn in held:
        gate.leave(turn)
    for task in waiting:
        gate.leave(await task)
    assert gate.running == 0


async def test_a_turn_that_cost_its_connection_lasts_on_where_that_happens_again_and_again() -> None:
    gate = engine_gate.Gate(max_running=4, max_waiting=10)
    party, other = gate.party("loses", 4), gate.party("other", 4)
    for each in (party, other):
        gate.limit(each, 4)
    for _ in range(8):
        assert gate.try_enter(party)
        gate.leave_at_a_loss(party, time.monotonic())
        assert gate.running == 0, "a few are lost at once when a server restarts"
    assert gate.try_enter(party)
    gate.leave_at_a_loss(party, time.monotonic())
    assert gate.running == 1
    assert gate.try_enter(other)
    gate.leave_at_a_loss(other, time.monotonic())
    assert gate.running == 1, "others pay for their own"
    async with asyncio.timeout(5):
        while gate.running:  # noqa: ASYNC110  # a timer is waited for
            await asyncio.sleep(0.01)
