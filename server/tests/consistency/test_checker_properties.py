"""The checker on histories made by chance: a serial one is clean, and one change to it that must show does show."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from server.tests.consistency.anomalies import AnomalyClass
from server.tests.consistency.checker import check
from server.tests.consistency.cycles import components, returning, shortest_path
from server.tests.consistency.history import Append, History, Operation, Outcome, Read, Transaction
from server.tests.examples import examples

pytestmark = [pytest.mark.unit, pytest.mark.slow]

KEYS = 3


@dataclass
class Store:
    """Lists that one transaction after the other changes."""

    lists: dict[int, tuple[int, ...]] = field(default_factory=lambda: dict.fromkeys(range(KEYS), ()))
    next_value: int = 1

    def append(self, key: int, apply: bool) -> Append:
        value, self.next_value = self.next_value, self.next_value + 1
        if apply:
            self.lists[key] += (value,)
        return Append(key, value)


@st.composite
def serial_histories(draw: st.DrawFn, only_ok: bool = False, at_least: int = 1) -> History:
    """Transactions that took effect in the order of their numbers, each within its interval, then a last read.

    Who failed has no effect; who has no answer may have one. Intervals reach back and forth over their neighbours.
    """
    store = Store()
    made: History = []
    outcomes = [Outcome.OK] if only_ok else list(Outcome)
    for number in range(draw(st.integers(at_least, 12))):
        outcome = draw(st.sampled_from(outcomes))
        applied = outcome is Outcome.OK or (outcome is Outcome.INFO and draw(st.booleans()))
        operations: list[Operation] = []
        for key in draw(st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4)):
            if draw(st.booleans()):
                operations.append(store.append(key, applied))
            else:
                operations.append(Read(key, store.lists[key] if outcome is Outcome.OK else None))
        begin, end = number * 10 - draw(st.integers(0, 40)), number * 10 + draw(st.integers(1, 40))
        made.append(Transaction(number, number, outcome, begin, end, tuple(operations)))
    last = tuple(Read(key, values) for key, values in store.lists.items())
    made.append(Transaction(len(made), len(made), Outcome.OK, 1_000, 1_001, last))
    return made


def changed(history: History, place: int, change: Callable[[Read], Read], operation: int) -> History:
    transaction = history[place]
    operations = list(transaction.operations)
    read = operations[operation]
    assert isinstance(read, Read)
    operations[operation] = change(read)
    return [*history[:place], msgspec.structs.replace(transaction, operations=tuple(operations)), *history[place + 1 :]]


@settings(max_examples=examples(300))
@given(serial_histories())
def test_a_serial_history_is_clean(history: History) -> None:
    report = check(history)
    assert report.anomalies == (), report.describe()


@given(serial_histories(at_least=8), st.data())
def test_an_append_dropped_from_the_last_read_is_found(history: History, data: st.DataObject) -> None:
    """Wherever it was in the list: who was acknowledged is lost, who was seen by another makes a contradiction."""
    key = data.draw(st.integers(0, KEYS - 1))
    whole = history[-1].operations[key]
    assert isinstance(whole, Read)
    values = whole.values
    assert values is not None
    assume(values)
    gone = data.draw(st.sampled_from(values))
    writer = next(each for each in history if Append(key, gone) in each.operations)
    seen = any(isinstance(o, Read) and gone in (o.values or ()) for each in history[:-1] for o in each.operations)
    assume(writer.outcome is Outcome.OK or seen)
    left = Read(key, tuple(value for value in values if value != gone))
    mutated = changed(history, len(history) - 1, lambda _: left, key)
    assert check(mutated).anomalies != ()


@given(serial_histories(at_least=8), st.data())
def test_two_values_swapped_in_a_read_are_found_if_another_read_has_them(history: History, data: st.DataObject) -> None:
    places = [
        (place, index)
        for place, transaction in enumerate(history[:-1])
        for index, operation in enumerate(transaction.operations)
        if isinstance(operation, Read) and len(operation.values or ()) > 1
    ]
    assume(places)
    place, index = data.draw(st.sampled_from(places))

    def swap(read: Read) -> Read:
        values = list(read.values or ())
        one = data.draw(st.integers(0, len(values) - 2))
        values[one], values[one + 1] = values[one + 1], values[one]
        return Read(read.key, tuple(values))

    found = check(changed(history, place, swap, index)).kinds
    assert found & {AnomalyClass.INCOMPATIBLE, AnomalyClass.INTERNAL}


@given(serial_histories(only_ok=True, at_least=8), st.data())
def test_a_stale_read_is_found_when_what_it_misses_had_completed(history: History, data: st.DataObject) -> None:
    """The last value is taken off a first read, though its writer had completed when the reader began."""
    places = []
    for place, transaction in enumerate(history[:-1]):
        touched: set[int] = set()
        for index, operation in enumerate(transaction.operations):
            if isinstance(operation, Read) and operation.key not in touched and operation.values:
                writer = next(
                    each for each in history if Append(operation.key, operation.values[-1]) in each.operations
                )
                if writer.completed_ns < transaction.invoked_ns:
                    places.append((place, index))
            touched.add(operation.key)
    assume(places)
    place, index = data.draw(st.sampled_from(places))
    mutated = changed(history, place, lambda read: Read(read.key, (read.values or ())[:-1]), index)
    assert check(mutated).anomalies != ()


@given(serial_histories(only_ok=True), st.data())
def test_write_skew_added_to_a_serial_history_is_found(history: History, data: st.DataObject) -> None:
    """Two transactions at the end read two lists, and each appends to the one that the other read."""
    lists = {operation.key: operation.values for operation in history[-1].operations if isinstance(operation, Read)}
    one, other = data.draw(st.permutations(range(KEYS)))[:2]
    skew = [
        Transaction(901, 901, Outcome.OK, 2_000, 3_000, (Read(one, lists[one]), Append(other, 9_001))),
        Transaction(902, 902, Outcome.OK, 2_000, 3_000, (Read(other, lists[other]), Append(one, 9_002))),
    ]
    assert check([*history, *skew]).kinds == {AnomalyClass.G2_ITEM}
    assert check([*history, skew[0]]).kinds == set()


graphs = st.integers(2, 9).flatmap(
    lambda size: st.dictionaries(
        st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda pair: pair[0] != pair[1]),
        st.integers(1, 3),
        max_size=24,
    ).map(
        lambda edges: {
            node: {second: mask for (first, second), mask in edges.items() if first == node} for node in range(size)
        }
    )
)


@given(graphs, st.integers(1, 3))
def test_components_are_those_nodes_that_lead_to_each_other(graph: dict[int, dict[int, int]], kinds: int) -> None:
    found = components(graph, kinds)
    assert sorted(node for part in found for node in part) == sorted(graph)
    part_of = {node: number for number, part in enumerate(found) for node in part}
    for one in graph:
        for other in graph:
            there, back = (bool(shortest_path(graph, kinds, *ends, graph)) for ends in ((one, other), (other, one)))
            assert (part_of[one] == part_of[other]) == (there and back)
            # Each comes after those that it leads to.
            assert not there or part_of[other] <= part_of[one]


@given(graphs, st.integers(1, 3))
def test_the_edges_that_a_path_leads_back_from_are_those_that_a_search_finds(
    graph: dict[int, dict[int, int]], kinds: int
) -> None:
    pairs = [(first, second) for first, targets in graph.items() for second in targets]
    found = returning(graph, kinds, pairs, graph)
    assert found == {(first, second) for first, second in pairs if shortest_path(graph, kinds, second, first, graph)}
