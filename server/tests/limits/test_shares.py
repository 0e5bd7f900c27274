"""Processes that join, leave, die, pause and lose the directory never grant more than the limit in any minute.

The rules of one process are the real ones (`core/share.py`, `limits/leases.py`), and so is the order of steps of
`directory/processes.py`. The directory is a model, which `directory/test_processes.py` compares with the real one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from plainsql_server.core.share import LAPSE_S, UNSEEN_S, WHOLE, Share
from plainsql_server.directory.processes import FORGOTTEN_S
from plainsql_server.limits import leases as leases_module
from plainsql_server.limits.account import Permit
from plainsql_server.limits.leases import Leases
from plainsql_server.limits.ledger import LeaseAsk
from plainsql_server.limits.permits import MINUTE, Permits
from server.tests.directory.list_model import Answer, ListModel, RefusedError

pytestmark = pytest.mark.unit

LIMIT = 30
_ORGANIZATIONS = ("org_a", "org_b")
_WINDOW_S = 60.0
_MOST = 5


@dataclass
class Process:
    """A process, with what `directory/processes.py` has of it, and when it granted permits."""

    name: str
    share: Share
    permits: Permits
    clock: Callable[[], float]
    number: int = 0
    since_s: float | None = None
    waiting: "list[tuple[str, asyncio.Future[Permit]]]" = field(default_factory=list)

    @property
    def leases(self) -> Leases:
        assert self.permits.leases is not None
        return self.permits.leases


class Processes(RuleBasedStateMachine):
    """Any order of what processes do and of what happens to them."""

    # Never runs, but futures need one.
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.list = ListModel()
        self.running: list[Process] = []
        self.dead: list[str] = []
        self.number = 0
        # Renewals that the directory receives late: (process, number, held, asks).
        self.delayed: list[tuple[str, int, int, Sequence[LeaseAsk]]] = []
        self.grants: list[tuple[float, str, int]] = []

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
        permits.lease_from_directory()
        process = Process(f"p{self.number}", share, permits, clock)
        self.running.append(process)
        self.renew(process)
        return process

    # The steps of `Membership._renew`.

    def renew(self, process: Process, fate: str = "answered", dead: Sequence[str] = (), took_s: float = 0.0) -> None:
        asks = process.leases.asks()
        asked_s, process.number = process.clock(), process.number + 1
        if fate == "delayed":
            self.delayed.append((process.name, process.number, process.share.held, asks))
        answer = None
        if fate in ("answered", "answer lost"):
            answer = self.list.renew(
                process.name, process.number, process.share.held, asks, now_s=self.now_s, dead=dead
            )
        self.now_s += took_s
        if answer is None or fate == "answer lost":
            process.leases.fail()
        else:
            process.share.accept(answer.renewed, asked_s)
            is_listed_anew, process.since_s = answer.since_s != process.since_s, answer.since_s
            process.leases.hear(answer.granted, is_listed_anew=is_listed_anew)
        self.note_served(process)

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
        name, number, held, asks = self.delayed.pop()
        with refused():
            self.list.renew(name, number, held, asks, now_s=self.now_s)

    @rule(data=st.data(), org=st.sampled_from(_ORGANIZATIONS), number=st.sampled_from([1, 5, LIMIT]))
    @precondition(lambda self: self.running)
    def requests(self, data: st.DataObject, org: str, number: int) -> None:
        self.take(data.draw(st.sampled_from(self.running)), number, org)

    def take(self, process: Process, number: int = LIMIT, org: str = "org_a") -> None:
        for _ in range(number):
            if process.permits.take_now(org, LIMIT) is not None:
                self.note(org)
            elif not process.leases.must_refuse(process.permits.accounts[org]):
                place: asyncio.Future[Permit] = self.loop.create_future()
                process.permits.accounts[org].waiting.append(place)
                process.waiting.append((org, place))
                process.leases.grow(process.permits.accounts[org])

    def note(self, org: str) -> None:
        self.grants.append((self.now_s, org, 1))
        self.check()

    def note_served(self, process: Process) -> None:
        for org, place in process.waiting:
            if place.done() and place.result().granted:
                self.note(org)
        process.waiting = [each for each in process.waiting if not each[1].done()]
        self.check()

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

    def check(self) -> None:
        """No more is granted in the last minute than the limit. Earlier minutes were checked when they ended."""
        self.grants = [grant for grant in self.grants if grant[0] > self.now_s - _WINDOW_S]
        granted: Counter[str] = Counter()
        for _, org, number in self.grants:
            granted[org] += number
        assert max(granted.values(), default=0) <= LIMIT, f"granted {granted}"
        assert sum(row.share for row in self.list.rows.values()) <= WHOLE
        assert sum(process.share.held for process in self.running) <= WHOLE, "shares"
        assert all(sum(leases.values()) <= LIMIT for leases in self.list.leases.values())

    def granted(self) -> int:
        return sum(number for _, _, number in self.grants)


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    Processes.loop = asyncio.new_event_loop()
    yield
    Processes.loop.close()


@contextmanager
def refused() -> Iterator[None]:
    try:
        yield
    except RefusedError:
        return


def test_no_minute_has_more_than_the_limit() -> None:
    options = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(Processes, settings=options)


def test_one_process_alone_grants_exactly_the_limit() -> None:
    processes = Processes()
    alone = processes.add()
    grant_all(processes, alone)
    assert processes.granted() == LIMIT


def test_what_one_does_not_use_others_have_within_seconds() -> None:
    processes = Processes()
    first = processes.add()
    processes.take(first, 10)
    processes.renew(first)
    second = processes.add()
    grant_all(processes, second)
    # It has asked for all there is, and the first one gives back what it did not use.
    for _ in range(2):
        processes.wait(leases_module.REVIEW_S)
        processes.renew(first)
        grant_all(processes, second)
    assert processes.granted() == LIMIT


def test_what_a_dead_process_had_is_granted_again_a_minute_later() -> None:
    processes = Processes()
    first, second = processes.add(), processes.add()
    grant_all(processes, first)
    processes.running.remove(first)
    for _ in range(38):
        processes.wait(2.0)
        processes.renew(second)
        processes.take(second, 1)
    assert second.share.held == WHOLE
    processes.wait(2.0)
    grant_all(processes, second)
    assert processes.granted() == LIMIT


def grant_all(processes: Processes, process: Process) -> None:
    """Asks for permits until the directory has no more."""
    for _ in range(3):
        processes.take(process)
        processes.renew(process)


# Each of these rules is needed: without it, a play grants more than the limit.


def grows_after_a_renewal_that_arrives_late(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    processes.take(first, 1)
    processes.renew(first, "delayed")
    processes.wait(1.0)
    grant_all(processes, first)
    for _ in range(3):
        processes.wait(2.0)
        processes.renew(first)
        grant_all(processes, first)
    with refused():
        processes.receive_late()
    grant_all(processes, second)


def loses_the_directory(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    processes.take(first, 1)
    processes.renew(first)
    for _ in range(80):
        processes.wait(1.0)
        processes.renew(second)
    grant_all(processes, second)
    processes.take(first)


def dies_after_it_granted_all(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    processes.renew(first)
    # As late as it may.
    processes.take(first, 1)
    processes.renew(first)
    processes.wait(LAPSE_S - 0.1)
    processes.take(first)
    for _ in range(20):
        processes.wait(1.0)
        processes.renew(second)
    grant_all(processes, second)


def is_listed_anew(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    processes.take(first, 1)
    processes.renew(first)
    for _ in range(80):
        processes.wait(1.0)
        processes.renew(second)
    grant_all(processes, second)
    processes.renew(first)
    processes.take(first)


def gives_back_what_it_granted(processes: Processes) -> None:
    first, second = processes.add(), processes.add()
    grant_all(processes, first)
    for _ in range(2):
        processes.wait(leases_module.REVIEW_S)
        processes.renew(first)
    grant_all(processes, second)


def shrinks_a_share_late(processes: Processes) -> None:
    processes.add()
    processes.wait(UNSEEN_S + 0.1)
    second = processes.add()
    assert second.share.held == WHOLE
    processes.check()


def _ignore_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListModel, "renew", _without_numbers(ListModel.renew))


def _without_numbers(renew: Callable[..., Answer]) -> Callable[..., Answer]:
    def renew_any(self: ListModel, *arguments: object, **options: object) -> Answer:
        self.ignores_numbers = True
        return renew(self, *arguments, **options)

    return renew_any


def _lapse_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plainsql_server.core.share.LAPSE_S", 2 * FORGOTTEN_S)


def _forget_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.tests.directory.list_model.FORGOTTEN_S", UNSEEN_S)


def _never_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    hear = Leases.hear

    def hear_old(self: Leases, answers: Sequence[tuple[int, int]], *, is_listed_anew: bool) -> None:
        hear(self, answers, is_listed_anew=False)

    monkeypatch.setattr(Leases, "hear", hear_old)


def _forget_used(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back = Leases._give_back

    def give_all_back(self: Leases, account: object) -> None:
        with monkeypatch.context() as inside:
            inside.setattr("plainsql_server.limits.window.Ledger.used", lambda *_: 0)
            give_back(self, account)  # type: ignore[arg-type]

    monkeypatch.setattr(Leases, "_give_back", give_all_back)


PLAYS = [
    (grows_after_a_renewal_that_arrives_late, _ignore_numbers),
    (loses_the_directory, _lapse_late),
    (shrinks_a_share_late, _lapse_late),
    (dies_after_it_granted_all, _forget_soon),
    (is_listed_anew, _never_listed_anew),
    (gives_back_what_it_granted, _forget_used),
]


@pytest.mark.parametrize(("play", "defect"), PLAYS, ids=lambda each: each.__name__)
def test_without_one_of_the_rules_more_is_granted(
    play: Callable[[Processes], None], defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Processes())
    defect(monkeypatch)
    with pytest.raises(AssertionError, match=r"granted|shares"):
        play(Processes())


def test_a_row_is_forgotten_only_when_nothing_of_it_counts() -> None:
    counted_s = MINUTE.counted_slots * MINUTE.slot_ms / 1000
    assert LAPSE_S + counted_s < FORGOTTEN_S
    assert UNSEEN_S + counted_s < FORGOTTEN_S
