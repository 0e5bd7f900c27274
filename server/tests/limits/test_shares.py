"""Processes that join, leave, die, pause and lose the directory never grant more than the limit in any minute.

The rules of one process are the real ones (`core/share.py`, `limits/permits.py`), and so is the order of steps of
`directory/processes.py`. The directory is a model, which `directory/test_processes.py` compares with the real one.

One thing is forgotten: what a process granted after its last renewal, if it never renews its row again in time. The
others can't know of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed, Share
from plainsql_server.limits.permits import Permits
from server.tests.directory.list_model import ListModel

pytestmark = pytest.mark.unit

LIMIT = 30
ORG = "org_a"
_WINDOW_S = 60.0
_MOST = 5


@dataclass
class Grant:
    """Permits that were granted at one time."""

    at_s: float
    number: int
    is_published: bool = False


@dataclass
class Process:
    """A process: its clock's rate, its share and permits, and what it granted."""

    name: str
    permits: Permits
    share: Share
    grants: list[Grant] = field(default_factory=list)
    in_use: int = 0
    expires_s: float = 0.0


class Processes(RuleBasedStateMachine):
    """Any order of what processes do and of what happens to them."""

    # What the rules are broken by, to show that the test notices.
    defect = ""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.list = ListModel()
        self.running: list[Process] = []
        self.gone: list[Process] = []
        self.number = 0

    # The steps of `Membership._renew`.

    def ask(self, process: Process, dead: Sequence[str] = ()) -> tuple[Renewed, dict[str, int]]:
        used = process.permits.used()
        held = max(process.share.held, process.in_use)
        for grant in process.grants:
            grant.is_published = True
        process.expires_s = self.now_s + UNSEEN_S
        return self.list.renew(process.name, held, used, self.now_s, dead)

    def accept(self, process: Process, answer: tuple[Renewed, dict[str, int]], asked_s: float) -> bool:
        renewed, others_used = answer
        if self.defect != "forgets what others used":
            process.permits.others_used = others_used
        more = process.share.accept(renewed, asked_s)
        return more and renewed.share > max(renewed.target, process.in_use)

    @rule(rate=st.sampled_from([0.99, 1.0, 1.01]))
    @precondition(lambda self: len(self.running) < _MOST)
    def join(self, rate: float) -> None:
        self.add(rate)

    def add(self, rate: float = 1.0) -> Process:
        self.number += 1

        def clock() -> float:
            return self.now_s * rate

        share = Share(clock)
        process = Process(f"p{self.number}", Permits(lambda _: None, share, clock=clock), share)
        self.running.append(process)
        self.go_through(process)
        return process

    @rule(data=st.data(), knows_of_the_dead=st.booleans(), breaks=st.sampled_from([0, 0, 0, 0, 1, 2, 3]))
    @precondition(lambda self: self.running)
    def renew(self, data: st.DataObject, knows_of_the_dead: bool, breaks: int) -> None:
        """A renewal, of which the answer to some question may be lost."""
        dead = [process.name for process in self.gone] if knows_of_the_dead else []
        self.go_through(data.draw(st.sampled_from(self.running)), breaks, dead)

    def go_through(self, process: Process, breaks: int = 0, dead: Sequence[str] = ()) -> None:
        asked_s = process.share._clock()
        if self.defect == "raises before commit":
            self.raise_(process)
        answer = self.ask(process, dead)
        if breaks == 1:
            return
        if self.defect == "writes before it lowers":
            row = self.list.rows[process.name]
            row.share = min(row.share, answer[0].target)
        if breaks == 2 and self.defect == "writes before it lowers":
            return
        if self.accept(process, answer, asked_s) and breaks != 3:
            self.accept(process, self.ask(process), asked_s)

    def raise_(self, process: Process) -> None:
        """Takes the equal part without asking what the others have."""
        number = sum(row.left_s is None for row in self.list.rows.values()) + (process.name not in self.list.rows)
        process.share.accept(Renewed(WHOLE // max(1, number), WHOLE // max(1, number), number), process.share._clock())

    @rule(data=st.data(), number=st.sampled_from([1, 5, LIMIT]))
    @precondition(lambda self: self.running)
    def grant(self, data: st.DataObject, number: int) -> None:
        self.take(data.draw(st.sampled_from(self.running)), number)

    def take(self, process: Process, number: int = LIMIT) -> None:
        granted = sum(process.permits.take_now(ORG, LIMIT) is not None for _ in range(number))
        process.grants.append(Grant(self.now_s, granted))
        self.check()

    @rule(data=st.data(), part=st.sampled_from([0, 0, 3, 2, 1]))
    @precondition(lambda self: self.running)
    def use(self, data: st.DataObject, part: int) -> None:
        """Has connections open, at most its share."""
        process = data.draw(st.sampled_from(self.running))
        process.in_use = process.share.held // part if part else 0

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 11.0, 14.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def leave(self, data: st.DataObject) -> None:
        process = self._take_out(data)
        for grant in process.grants:
            grant.is_published = True
        self.list.leave(process.name, process.permits.used(), self.now_s)

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def die(self, data: st.DataObject) -> None:
        self._take_out(data)

    def _take_out(self, data: st.DataObject) -> Process:
        process = data.draw(st.sampled_from(self.running))
        self.running.remove(process)
        self.gone.append(process)
        return process

    def check(self) -> None:
        """No more is granted in the last minute than the limit. Earlier minutes were checked when they ended."""
        for process in [*self.running, *self.gone]:
            row = self.list.rows.get(process.name)
            if row is None or row.left_s is not None or row.seen_s <= self.now_s - UNSEEN_S:
                # Others may have its share, and know of what it published before.
                process.grants = [
                    each for each in process.grants if each.is_published or each.at_s >= process.expires_s
                ]
        granted = sum(
            grant.number
            for process in [*self.running, *self.gone]
            for grant in process.grants
            if grant.at_s > self.now_s - _WINDOW_S
        )
        assert granted <= LIMIT, f"{granted} granted"
        assert sum(row.share for row in self.list.rows.values()) <= WHOLE


def test_no_minute_has_more_than_the_limit() -> None:
    options = settings(max_examples=30, stateful_step_count=30, deadline=None, database=None)
    run_state_machine_as_test(Processes, settings=options)


# Each of these rules is needed: without it, a play grants more than the limit.


def joins_and_loses_the_answer(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    processes.go_through(second, breaks=1)
    processes.take(second)
    processes.take(first)


def gives_up_a_half_and_loses_the_answer(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    processes.go_through(first, breaks=2)
    processes.go_through(second)
    processes.take(second)
    processes.take(first)


def gives_up_a_half_that_it_has_granted(processes: Processes) -> None:
    first = processes.add()
    processes.take(first)
    second = processes.add()
    processes.go_through(first)
    processes.go_through(second)
    assert second.share.held == WHOLE // 2
    processes.take(second)


def does_not_renew_in_time(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    for each in (first, second):
        processes.go_through(each)
    processes.wait(seconds=UNSEEN_S)
    processes.go_through(second)
    assert second.share.held == WHOLE
    processes.take(first)
    processes.take(second)


PLAYS = [
    (joins_and_loses_the_answer, "raises before commit"),
    (gives_up_a_half_and_loses_the_answer, "writes before it lowers"),
    (gives_up_a_half_that_it_has_granted, "forgets what others used"),
    (does_not_renew_in_time, "lapses late"),
]


@pytest.mark.parametrize(("play", "defect"), PLAYS)
def test_without_one_of_the_rules_more_is_granted(
    play: Callable[[Processes], None], defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Processes())
    if defect == "lapses late":
        monkeypatch.setattr("plainsql_server.core.share.LAPSE_S", UNSEEN_S + 1)
    processes = Processes()
    processes.defect = defect
    with pytest.raises(AssertionError, match="granted"):
        play(processes)
