"""The checker on histories made by hand: each class is found, and what only looks like it is not."""

import random
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from server.tests.consistency.anomalies import AnomalyClass
from server.tests.consistency.checker import check
from server.tests.consistency.history import (
    Append,
    History,
    MalformedHistory,
    Operation,
    Outcome,
    Read,
    Transaction,
    load,
    save,
)
from server.tests.consistency.notation import Written, a, fail, history, info, ok, r, unread
from server.tests.load import size

TRANSACTIONS = size("PLAINSQL_TEST_HISTORY", 10_000)

pytestmark = pytest.mark.unit

# A name that says what happens, the transactions, and exactly the classes that are to be found.
SHOWN: dict[str, tuple[list[Written], set[str]]] = {
    "G0: two lists have two transactions in opposite orders": (
        [ok(a(1, 1), a(2, 1)), ok(a(1, 2), a(2, 2)), ok(r(1, 1, 2)), ok(r(2, 2, 1))],
        {"G0"},
    ),
    "G0: another's append is between two of one transaction": (
        [ok(a(1, 1), a(1, 3)), ok(a(1, 2)), ok(r(1, 1, 2, 3))],
        {"G0"},
    ),
    "G1a: a failed append is read": ([fail(a(1, 1)), ok(r(1, 1))], {"G1A"}),
    "G1a: a failed append is read in the middle": (
        [fail(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2))],
        {"G1A"},
    ),
    "G1b: the first of two appends is read alone": (
        [ok(a(1, 1), a(1, 2)), ok(r(1, 1)), ok(r(1, 1, 2))],
        # That reader also comes after the transaction that it read from and before it, by what it missed.
        {"G1B", "G_SINGLE"},
    ),
    "G1b: an append without an answer is read half": ([info(a(1, 1), a(1, 2)), ok(r(1, 1))], {"G1B", "G_SINGLE"}),
    "G1c: two transactions read each other": ([ok(a(1, 1), r(2, 1)), ok(a(2, 1), r(1, 1))], {"G1C"}),
    "G1c: a read against the order of appends": (
        [ok(a(1, 1), r(2, 1)), ok(a(1, 2), a(2, 1)), ok(r(1, 1, 2))],
        {"G1C"},
    ),
    "G-single: of two appends of a transaction one is read": (
        [ok(a(1, 1), a(2, 1)), ok(r(1), r(2, 1)), ok(r(1, 1))],
        {"G_SINGLE"},
    ),
    "G-single: lost update": (
        [ok(r(1), a(1, 1)), ok(r(1), a(1, 2)), ok(r(1, 1, 2))],
        {"G_SINGLE"},
    ),
    "G-single: over three transactions": (
        [ok(a(1, 1)), ok(r(1, 1), a(2, 1)), ok(r(2, 1), r(1)), ok(r(1, 1))],
        {"G_SINGLE"},
    ),
    "G-single: what nobody read comes last": (
        [ok(a(1, 1), a(2, 1)), ok(r(2, 1), r(1))],
        {"G_SINGLE"},
    ),
    "G2-item: write skew": (
        [ok(r(1), a(2, 1)), ok(r(2), a(1, 1)), ok(r(1, 1), r(2, 1))],
        {"G2_ITEM"},
    ),
    "G2-item: write skew that nobody looked at": ([ok(r(1), a(2, 1)), ok(r(2), a(1, 1))], {"G2_ITEM"}),
    "G2-item: a reader sees the later of two first": (
        [ok(r(1), r(2), a(2, 1)), ok(a(1, 1)), ok(r(1, 1), r(2)), ok(r(2, 1))],
        {"G2_ITEM"},
    ),
    "G2-item: in a circle of three": (
        [ok(r(1), a(2, 1)), ok(r(2), a(3, 1)), ok(r(3), a(1, 1)), ok(r(1, 1), r(2, 1), r(3, 1))],
        {"G2_ITEM"},
    ),
    "internal: an own append is not read": ([ok(a(1, 1), r(1))], {"INTERNAL"}),
    "internal: a read is not repeated": ([ok(a(1, 1)), ok(r(1), r(1, 1))], {"INTERNAL"}),
    "internal: a read and an append do not add up": (
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1), a(1, 3), r(1, 1, 3)), ok(r(1, 1, 3, 2))],
        {"INTERNAL", "G_SINGLE"},
    ),
    "internal: an append is read before it is made": ([ok(r(1, 1), a(1, 1))], {"INTERNAL"}),
    "lost append: a later read lacks it": (
        [ok(a(1, 1)).at(0, 1), ok(a(1, 2)).at(0, 1), ok(r(1, 2)).at(5, 6)],
        {"LOST"},
    ),
    "lost append: the list is empty afterwards": ([ok(a(1, 1)).at(0, 1), ok(r(1)).at(5, 6)], {"LOST"}),
    "duplicate append: it is there twice": ([ok(a(1, 1)), ok(r(1, 1, 1))], {"DUPLICATE"}),
    "duplicate append: of one without an answer": (
        [info(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2, 1))],
        {"DUPLICATE"},
    ),
    "incompatible orders: two reads differ": (
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2)), ok(r(1, 2, 1))],
        {"INCOMPATIBLE"},
    ),
    "incompatible orders: a read has a hole": (
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2)), ok(r(1, 2))],
        {"INCOMPATIBLE"},
    ),
    "incompatible orders: against the writer's own": ([ok(a(1, 1), a(1, 2)), ok(r(1, 2, 1))], {"G1B", "INCOMPATIBLE"}),
    "garbage: nobody wrote it": ([ok(r(1, 9))], {"GARBAGE"}),
    "real-time: a stale read": (
        [ok(a(1, 1)).at(0, 1), ok(r(1)).at(2, 3), ok(r(1, 1)).at(4, 5)],
        {"REAL_TIME"},
    ),
    "real-time: with transactions in between": (
        [ok(a(1, 1)).at(0, 1), ok(a(5, 1)).at(2, 3), ok(a(6, 1)).at(4, 5), ok(r(1)).at(6, 7), ok(r(1, 1)).at(8, 9)],
        {"REAL_TIME"},
    ),
    "real-time: appends in the wrong order": (
        [ok(a(1, 1)).at(0, 1), ok(a(1, 2)).at(2, 3), ok(r(1, 2, 1)).at(4, 5)],
        {"REAL_TIME"},
    ),
    "real-time: one without an answer before its beginning": (
        # It was seen by a read that had completed when it began.
        [ok(r(1, 1)).at(0, 1), info(a(1, 1)).at(5, 6)],
        {"REAL_TIME"},
    ),
    "real-time: an append without an answer goes away again": (
        [info(a(1, 1)).at(0, 1), ok(r(1, 1)).at(2, 3), ok(r(1)).at(4, 5)],
        {"REAL_TIME"},
    ),
    "real-time: half of one without an answer": (
        [info(a(1, 1), a(2, 1)).at(0, 1), ok(r(1, 1)).at(2, 3), ok(r(2)).at(4, 5)],
        {"REAL_TIME"},
    ),
}

# What comes close, and has an order after all.
EXPLAINED: dict[str, list[Written]] = {
    "nothing": [],
    "G0: the same order in both lists": [
        ok(a(1, 1), a(2, 1)), ok(a(1, 2), a(2, 2)), ok(r(1, 1, 2)), ok(r(2, 1, 2)),
    ],
    "G0: two appends of one transaction after another": [ok(a(1, 1), a(1, 2)), ok(a(1, 3)), ok(r(1, 1, 2, 3))],
    "G1a: one without an answer took effect": [info(a(1, 1)), ok(r(1, 1))],
    "G1a: a failed append is not read": [fail(a(1, 1)), ok(r(1))],
    "G1b: both appends are read": [ok(a(1, 1), a(1, 2)), ok(r(1, 1, 2)), ok(r(1))],
    "G1b: one's own first append": [ok(a(1, 1), r(1, 1), a(1, 2)), ok(r(1, 1, 2))],
    "G1c: information flows one way": [ok(a(1, 1)), ok(a(2, 1), r(1, 1)), ok(r(2, 1))],
    "G-single: neither of two appends is read": [ok(a(1, 1), a(2, 1)), ok(r(1), r(2)), ok(r(1, 1), r(2, 1))],
    "G-single: the second of two updates saw the first": [ok(r(1), a(1, 1)), ok(r(1, 1), a(1, 2)), ok(r(1, 1, 2))],
    "G2-item: the second saw the first": [ok(r(1), a(2, 1)), ok(r(2, 1), a(1, 1)), ok(r(1, 1), r(2, 1))],
    "G2-item: the other failed": [ok(r(1), a(2, 1)), fail(unread(2), a(1, 1)), ok(r(1), r(2, 1))],
    "G2-item: the other has no answer, and was not seen": [ok(r(1), a(2, 1)), info(unread(2), a(1, 1)), ok(r(2, 1))],
    "G2-item: the reads of one without an answer are not known": [
        ok(r(1), a(2, 1)), info(unread(2), a(1, 1)), ok(r(1, 1), r(2, 1)),
    ],
    "G2-item: a chain of anti-dependencies": [ok(r(1), a(2, 1)), ok(r(2), a(3, 1)), ok(r(3)), ok(r(2, 1), r(3, 1))],
    "internal: reads and appends add up": [ok(a(1, 1)), ok(r(1, 1), a(1, 2), r(1, 1, 2), a(1, 3), r(1, 1, 2, 3))],
    "internal: an append before the first read": [ok(a(1, 1)), ok(a(1, 2), a(1, 3), r(1, 1, 2, 3))],
    "internal: a failed one may say what it likes": [fail(a(1, 1), r(1))],
    "lost append: the read overlaps it": [ok(a(1, 1)).at(0, 5), ok(r(1)).at(4, 6)],
    "lost append: it was never acknowledged": [info(a(1, 1)).at(0, 1), ok(r(1)).at(5, 6)],
    "lost append: it failed": [fail(a(1, 1)).at(0, 1), ok(r(1)).at(5, 6)],
    "lost append: nobody looked afterwards": [ok(r(1)).at(0, 1), ok(a(1, 1)).at(5, 6)],
    "duplicate append: the same value in two lists": [ok(a(1, 1), a(2, 1)), ok(r(1, 1), r(2, 1))],
    "incompatible orders: one read is a beginning of the other": [
        ok(a(1, 1)), ok(a(1, 2)), ok(r(1)), ok(r(1, 1)), ok(r(1, 1, 2)),
    ],
    "real-time: the stale read overlaps the append": [ok(a(1, 1)).at(0, 3), ok(r(1)).at(2, 4), ok(r(1, 1)).at(5, 6)],
    "real-time: they meet in one moment": [ok(a(1, 1)).at(0, 2), ok(r(1)).at(2, 4), ok(r(1, 1)).at(5, 6)],
    "real-time: one without an answer takes effect late": [
        info(a(1, 1)).at(0, 1), ok(r(1)).at(2, 3), ok(a(1, 2)).at(4, 5), ok(r(1, 2, 1)).at(6, 7),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_an_anomaly_is_found_and_called_by_its_name(name: str) -> None:
    transactions, expected = SHOWN[name]
    report = check(history(*transactions))
    assert {kind.name for kind in report.kinds} == expected, report.describe()


@pytest.mark.parametrize("name", EXPLAINED)
def test_histories_that_resemble_an_anomaly_are_clean(name: str) -> None:
    report = check(history(*EXPLAINED[name]))
    assert report.anomalies == (), report.describe()


def test_every_class_has_a_history_that_shows_it() -> None:
    shown = set().union(*(expected for _, expected in SHOWN.values()))
    assert shown == {kind.name for kind in AnomalyClass}


def test_a_cycle_is_described_transaction_by_transaction() -> None:
    (skew,) = check(history(ok(r(1), a(2, 1)), ok(r(2), a(1, 1)), ok(r(1, 1), r(2, 1)))).anomalies
    assert set(skew.transactions) == {0, 1}
    assert "T0 (ok, process 0) [read(1) = [] append(2, 1)]" in skew.story
    assert "T0 -rw-> T1: T0 read list 1 empty, without 1 of T1" in skew.story
    assert "T1 -rw-> T0: T1 read list 2 empty, without 1 of T0" in skew.story


def test_a_stale_read_is_described_without_the_transactions_in_between() -> None:
    transactions, _ = SHOWN["real-time: with transactions in between"]
    (stale,) = check(history(*transactions)).anomalies
    assert set(stale.transactions) == {0, 3}
    assert "T0 -rt-> T3: T0 had completed when T3 began" in stale.story


def test_a_report_counts_what_it_has_seen() -> None:
    report = check(history(ok(a(1, 1)), ok(r(1, 1, 1)), fail(a(1, 2)), info(a(1, 3))))
    assert report.outcomes == {Outcome.OK: 2, Outcome.FAIL: 1, Outcome.INFO: 1}
    assert report.counts() == {"DUPLICATE": 1}


@pytest.mark.parametrize(
    "malformed",
    [
        [ok(a(1, 1)), ok(a(1, 1))],
        [ok(unread(1))],
        [ok(a(1, 1)).at(5, 4)],
    ],
    ids=["one append twice", "ok without its reads", "ends before it begins"],
)
def test_a_contradictory_history_is_rejected(malformed: list[Written]) -> None:
    with pytest.raises(MalformedHistory):
        check(history(*malformed))


def test_two_transactions_of_one_number_are_refused() -> None:
    with pytest.raises(MalformedHistory):
        check(history(ok(a(1, 1))) + history(ok(a(1, 2))))


def test_a_history_is_saved_and_loaded(tmp_path: Path) -> None:
    written = history(ok(a(1, 1), r(1, 1)), info(unread(1)), fail(a(2, 1)).at(3, 4))
    save(written, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == written


def serial(count: int, clients: int, seed: int) -> History:
    """Transactions that take effect one after the other, each at a moment of its own within its interval."""
    chance = random.Random(seed)
    lists: dict[int, list[int]] = defaultdict(list)
    free_at = [0] * clients
    made: History = []
    effect = 0
    for number in range(count):
        process = min(range(clients), key=lambda each: free_at[each])
        begin = free_at[process] + chance.randrange(10)
        effect = max(effect, begin) + 1
        free_at[process] = effect + chance.randrange(10 * clients)
        operations: list[Operation] = []
        for _ in range(chance.randint(1, 4)):
            values = lists[key := number // 200 * 10 + chance.randrange(10)]
            if chance.random() < 0.5:
                values.append(len(values) + 1)
                operations.append(Append(key, values[-1]))
            else:
                operations.append(Read(key, tuple(values)))
        made.append(Transaction(number, process, Outcome.OK, begin, free_at[process], tuple(operations)))
    return made


@pytest.mark.slow
def test_one_stale_read_in_a_long_history_is_found() -> None:
    made = serial(TRANSACTIONS, clients=32, seed=1)
    report = check(made)
    assert report.anomalies == (), report.describe()
    place, read = next(
        (place, operation)
        for place in range(TRANSACTIONS * 4 // 5, TRANSACTIONS)
        for operation in made[place].operations
        if isinstance(operation, Read) and len(operation.values or ()) > 30 and len(made[place].operations) == 1
    )
    made[place] = msgspec.structs.replace(made[place], operations=(Read(read.key, ()),))
    assert check(made).kinds == {AnomalyClass.REAL_TIME}
