"""The checker beside an oracle that tries every order: on small histories the two say the same.

The histories come from a store without any isolation, whose operations mix as chance has it, so that about half of
them have an order and half have none.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.tests.consistency.checker import check
from server.tests.consistency.history import Append, History, Operation, Outcome, Read, Transaction
from server.tests.load import size

pytestmark = [pytest.mark.slow, pytest.mark.unit]

KEYS = 2


@st.composite
def mixed_histories(draw: st.DrawFn) -> History:
    """At most four transactions whose operations mix, and a last read that sees everything."""
    plans = draw(
        st.lists(
            st.lists(st.tuples(st.booleans(), st.integers(0, KEYS - 1)), min_size=1, max_size=3), min_size=2, max_size=4
        )
    )
    schedule = draw(st.permutations([number for number, plan in enumerate(plans) for _ in plan]))
    outcomes = [draw(st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.INFO, Outcome.FAIL])) for _ in plans]
    lists: dict[int, tuple[int, ...]] = dict.fromkeys(range(KEYS), ())
    done: list[list[Operation]] = [[] for _ in plans]
    for value, number in enumerate(schedule):
        appends, key = plans[number][len(done[number])]
        if appends:
            if outcomes[number] is not Outcome.FAIL or draw(st.integers(0, 9)) == 0:
                lists[key] += (value,)
            done[number].append(Append(key, value))
        else:
            done[number].append(Read(key, lists[key] if outcomes[number] is Outcome.OK else None))
    # Overlapping or one after the other, whatever they really did.
    intervals = [(begin, begin + draw(st.integers(0, 20))) for begin in (draw(st.integers(0, 20)) for _ in plans)]
    made = [
        Transaction(number, number, outcome, *interval, tuple(operations))
        for number, (outcome, interval, operations) in enumerate(zip(outcomes, intervals, done, strict=True))
    ]
    last = tuple(Read(key, values) for key, values in lists.items())
    return [*made, Transaction(len(made), len(made), Outcome.OK, 100, 101, last)]


def has_order(history: History) -> bool:
    """Whether some order of the transactions that took effect explains every read and agrees with the clock."""
    certain = [each for each in history if each.outcome is Outcome.OK]
    unknown = [each for each in history if each.outcome is Outcome.INFO]
    chosen = chain.from_iterable(combinations(unknown, count) for count in range(len(unknown) + 1))
    return any(_explains(order) for extra in chosen for order in permutations([*certain, *extra]))


def _explains(order: tuple[Transaction, ...]) -> bool:
    return _agrees_with_clock(order) and all(_replayed(order))


def _agrees_with_clock(order: tuple[Transaction, ...]) -> bool:
    return not any(
        later.outcome is Outcome.OK and later.completed_ns < earlier.invoked_ns
        for place, later in enumerate(order)
        for earlier in order[:place]
    )


def _replayed(order: tuple[Transaction, ...]) -> Iterator[bool]:
    lists: dict[int, tuple[int, ...]] = dict.fromkeys(range(KEYS), ())
    for operation in chain.from_iterable(transaction.operations for transaction in order):
        if isinstance(operation, Append):
            lists[operation.key] += (operation.value,)
        elif operation.values is not None:
            yield operation.values == lists[operation.key]


HISTORIES = size("PLAINSQL_TEST_ORACLE", 150)


def test_the_checker_finds_an_anomaly_exactly_where_no_order_explains_the_history() -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=HISTORIES)
    @given(mixed_histories())
    def compare(history: History) -> None:
        report = check(history)
        ordered = has_order(history)
        seen[ordered] += 1
        assert (report.anomalies == ()) == ordered, report.describe()

    compare()
    # Both sides were really asked.
    assert min(seen[True], seen[False]) > HISTORIES // 8, seen
