"""What each transaction shows by itself: what it read from others, and where it contradicts itself.

Owns the taking apart of transactions into appends and outside reads. A read that comes after the transaction's own
appends has these at its end; what is before them came from outside.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from server.tests.consistency.anomalies import Anomaly, AnomalyClass
from server.tests.consistency.history import Append, Outcome, Read, Transaction, describe


@dataclass(frozen=True, slots=True)
class OutsideRead:
    """A list as a transaction found it, without its own appends."""

    reader: int
    key: int
    values: tuple[int, ...]


@dataclass
class Observations:
    """Who wrote what, who read what from others, and what is wrong already."""

    transactions: dict[int, Transaction]
    # The writer of each (key, value).
    writers: dict[tuple[int, int], int] = field(default_factory=dict)
    # What a transaction appended to a key, in its order.
    appended: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    reads: list[OutsideRead] = field(default_factory=list)
    # Every (key, value) that somebody else than its writer read.
    seen: set[tuple[int, int]] = field(default_factory=set)
    anomalies: list[Anomaly] = field(default_factory=list)

    def committed(self) -> set[int]:
        """The transactions that took effect: acknowledged, or without an answer but seen by somebody."""
        seen = {self.writers.get(place) for place in self.seen}
        return {
            number
            for number, transaction in self.transactions.items()
            if transaction.outcome is Outcome.OK or (transaction.outcome is Outcome.INFO and number in seen)
        }


def observe(history: Iterable[Transaction]) -> Observations:
    """Takes the history apart, and finds what a single transaction or a single read shows."""
    found = Observations({transaction.id: transaction for transaction in history})
    for transaction in found.transactions.values():
        for operation in transaction.operations:
            if isinstance(operation, Append):
                found.writers[operation.key, operation.value] = transaction.id
                found.appended[transaction.id, operation.key].append(operation.value)
    for transaction in found.transactions.values():
        if transaction.outcome is Outcome.OK:
            _walk(transaction, found)
    for read in found.reads:
        found.anomalies += _wrong_values(read, found)
    return found


def _walk(transaction: Transaction, found: Observations) -> None:
    """Follows a transaction through its operations, with what it knows of each list by then."""
    known: dict[int, tuple[int, ...]] = {}
    own: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for operation in transaction.operations:
        key = operation.key
        if isinstance(operation, Append):
            own[key] += (operation.value,)
            if key in known:
                known[key] += (operation.value,)
            continue
        values = operation.values
        assert values is not None, "well-formed"
        found.anomalies += _duplicates(transaction, operation, values)
        if key in known:
            if values != known[key]:
                expected = describe(Read(key, known[key]))
                found.anomalies.append(_contradiction(transaction, f"{describe(operation)}, by itself {expected}"))
        else:
            outside, complaint = _without_own(values, own[key], set(found.appended[transaction.id, key]))
            if complaint:
                found.anomalies.append(_contradiction(transaction, f"{describe(operation)} {complaint}"))
            found.reads.append(OutsideRead(transaction.id, key, outside))
        known[key] = values


def _without_own(values: tuple[int, ...], own: tuple[int, ...], ever: set[int]) -> tuple[tuple[int, ...], str]:
    """What of a first read came from outside, and what is wrong with the rest."""
    outside = values[: len(values) - len(own)]
    complaint = ""
    if values[len(outside) :] != own:
        complaint = f"does not end with its own appends {list(own)}"
    elif not ever.isdisjoint(outside):
        complaint = "has an append of its own that it had not made yet"
    if complaint:
        outside = tuple(value for value in values if value not in ever)
    return tuple(dict.fromkeys(outside)), complaint


def _contradiction(transaction: Transaction, what: str) -> Anomaly:
    return Anomaly(AnomalyClass.INTERNAL, (transaction.id,), f"{transaction.describe()}\n{what}")


def _duplicates(transaction: Transaction, read: Read, values: tuple[int, ...]) -> Iterator[Anomaly]:
    if len(set(values)) < len(values):
        twice = sorted({value for value in values if values.count(value) > 1})
        yield Anomaly(
            AnomalyClass.DUPLICATE, (transaction.id,), f"T{transaction.id} {describe(read)} has {twice} more than once"
        )


def _wrong_values(read: OutsideRead, found: Observations) -> Iterator[Anomaly]:
    """What a read should not have seen: garbage, what failed, what was not finished. Each value is reported once."""
    places = [(read.key, value) for value in read.values]
    for place in places:
        if place not in found.seen:
            found.seen.add(place)
            yield from _wrong_value(read, place, found)
    writer = found.writers.get(places[-1]) if places else None
    if writer is not None and found.appended[writer, read.key][-1] != read.values[-1]:
        ended = f"{read.values[-1]} is not the last append of {found.transactions[writer].describe()}"
        yield Anomaly(AnomalyClass.G1B, (read.reader, writer), f"{_story(read)}: {ended}")


def _wrong_value(read: OutsideRead, place: tuple[int, int], found: Observations) -> Iterator[Anomaly]:
    writer = found.writers.get(place)
    if writer is None:
        yield Anomaly(AnomalyClass.GARBAGE, (read.reader,), f"{_story(read)}: nobody appended {place[1]}")
    elif found.transactions[writer].outcome is Outcome.FAIL:
        failed = f"{place[1]} is of {found.transactions[writer].describe()}"
        yield Anomaly(AnomalyClass.G1A, (read.reader, writer), f"{_story(read)}: {failed}")


def _story(read: OutsideRead) -> str:
    return f"T{read.reader} {describe(Read(read.key, read.values))}"
