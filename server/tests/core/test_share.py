"""Processes that join, leave, die, pause and lose the directory never have more together than the whole.

The rules of one process are the real ones (`core/share.py`), and so is the order of steps of
`directory/sharing/processes.py`. The directory is a model, which `directory/test_processes.py` compares with the real
one. The processes also grant permits by their shares, as they do while Redis is lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from plainsql_server.core.share import LAPSE_S, UNSEEN_S, WHOLE, Renewed, Share
from plainsql_server.limits.permits import Permits, PermitSource
from server.tests.directory.list_model import ListModel, RefusedError

pytestmark = pytest.mark.unit

LIMIT = 60
_WINDOW_S = 60.0
_MOST = 5


@dataclass
class Process:
    """A process, with what `directory/sharing/processes.py` has of it."""

    name: str
    share: Share
    permits: Permits
    clock: Callable[[], float]
    number: int = 0
    # What has not been closed yet of a larger share.
    in_use: int = 0


class Processes(RuleBasedStateMachine):
    """Any order of what processes do and of what happens to them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.list = ListModel()
        self.running: list[Process] = []
        self.dead: list[str] = []
        self.number = 0
        # Renewals that the directory receives late: (process, number, held).
        self.delayed: list[tuple[str, int, int]] = []
        self.grants: list[float] = []

    @rule(rate=st.sampled_from([0.99, 1.0, 1.01]))
    @precondition(lambda self: len(self.running) < _MOST)
    def join(self, rate: float) -> None:
        self.add(rate)

    def add(self, rate: float = 1.0) -> Process:
        self.number += 1

        def clock() -> float:
            return self.now_s * rate

        share = Share(clock)
        permits = Permits(lambda _: None, share, clock=clock)
        permits._enter(PermitSource.LOST)
        process = Process(f"p{self.number}", share, permits, clock)
        self.running.append(process)
        self.renew(process)
        return process

    # The steps of `Membership._renew`.

    def renew(self, process: Process, fate: str = "answered", dead: Sequence[str] = (), took_s: float = 0.0) -> None:
        asked_s, process.number = process.clock(), process.number + 1
        held = max(process.share.held, process.in_use)
        if fate == "delayed":
            self.delayed.append((process.name, process.number, held))
        answer = None
        if fate in ("answered", "answer lost"):
            answer = self.list.renew(process.name, process.number, held, now_s=self.now_s, dead=dead)
        self.now_s += took_s
        if answer is not None and fate == "answered":
            process.share.accept(answer, asked_s)
        self.check()

    @rule(
        data=st.data(),
        fate=st.sampled_from(["answered"] * 6 + ["not sent", "answer lost", "delayed"]),
        knows_of_the_dead=st.booleans(),
        took_s=st.sampled_from([0.0, 0.0, 2.9]),
    )
    @precondition(lambda self: self.running)
    def some_renewal(self, data: st.DataObject, fate: str, knows_of_the_dead: bool, took_s: float) -> None:
        self.renew(data.draw(st.sampled_from(self.running)), fate, self.dead if knows_of_the_dead else (), took_s)

    @rule()
    @precondition(lambda self: self.delayed)
    def receive_late(self) -> None:
        name, number, held = self.delayed.pop()
        try:
            self.list.renew(name, number, held, now_s=self.now_s)
        except RefusedError:
            return

    @rule(data=st.data(), number=st.sampled_from([1, 5, LIMIT]))
    @precondition(lambda self: self.running)
    def requests(self, data: st.DataObject, number: int) -> None:
        self.take(data.draw(st.sampled_from(self.running)), number)

    def take(self, process: Process, number: int = LIMIT) -> int:
        before = len(self.grants)
        for _ in range(number):
            # At least one is always granted, whatever the share.
            if process.share.granting_part_of(LIMIT) and process.permits.take_now("org", LIMIT) is not None:
                self.grants.append(self.now_s)
        self.check()
        return len(self.grants) - before

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0, 4.0, 11.0, 14.0, 40.0, 61.5]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def leave(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.running.remove(process)
        self.list.leave(process.name, self.now_s)

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def die(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.running.remove(process)
        self.dead.append(process.name)

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def use(self, data: st.DataObject) -> None:
        """Opens or closes connections."""
        process = data.draw(st.sampled_from(self.running))
        process.in_use = data.draw(st.integers(0, process.share.held))

    def check(self) -> None:
        assert sum(row.share for row in self.list.rows.values()) <= WHOLE
        assert sum(process.share.held for process in self.running) <= WHOLE
        self.grants = [at_s for at_s in self.grants if at_s > self.now_s - _WINDOW_S]
        assert len(self.grants) <= LIMIT


def test_processes_never_have_more_than_the_whole_whatever_happens() -> None:
    run_state_machine_as_test(Processes, settings=settings(max_examples=300, stateful_step_count=40, deadline=None))


def test_two_processes_have_a_half_each_as_soon_as_the_first_one_knows_of_the_second() -> None:
    world = Processes()
    first = world.add()
    assert first.share.held == WHOLE
    second = world.add()
    assert second.share.held == 0
    for process in (first, first, second):
        world.renew(process)
    assert [first.share.held, second.share.held] == [WHOLE // 2] * 2


def test_a_share_that_grew_grants_permits_when_nothing_counts_that_others_granted_by_it() -> None:
    world = Processes()
    first, second = world.add(), world.add()
    assert world.take(first) == LIMIT
    for process in (first, first, second):
        world.renew(process)
    assert world.take(second) == 0
    for _ in range(8):
        world.now_s += 8
        for process in (first, second):
            world.renew(process)
    assert world.take(second) == LIMIT // 2


def test_a_process_whose_row_is_as_old_as_all_that_counts_grants_at_once() -> None:
    share = Share(lambda: 0.0)
    share.accept(Renewed(WHOLE, WHOLE, 1, is_first=True), 0.0)
    assert share.granting_part_of(100) == 100


def test_a_share_grants_what_it_is_when_shares_begin_to_grant() -> None:
    """Before, Redis counted for all."""
    share = Share(lambda: 0.0)
    share.accept(Renewed(WHOLE // 2, WHOLE // 2, 2), 0.0)
    assert share.granting_part_of(100) == 0
    share.begin_granting()
    assert share.granting_part_of(100) == 50


def test_a_share_that_lapsed_is_none_and_grows_again_from_nothing() -> None:
    now_s = 0.0
    share = Share(lambda: now_s)
    share.accept(Renewed(WHOLE, WHOLE, 1, is_first=True), 0.0)
    now_s = LAPSE_S
    assert (share.held, share.part_of(100), share.granting_part_of(100), share.left_s) == (0, 0, 0, 0.0)
    share.accept(Renewed(WHOLE, WHOLE, 1), now_s)
    assert (share.part_of(100), share.granting_part_of(100)) == (100, 0)
    assert LAPSE_S < UNSEEN_S


def test_a_fixed_share_never_changes() -> None:
    share = Share.fixed(Fraction(1, 4))
    assert (share.part_of(100), share.granting_part_of(100), share.processes) == (25, 25, 4)
