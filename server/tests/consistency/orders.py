"""The order in which a list's values were appended, as far as reads show it.

Owns the version orders. A list only grows at its end, so that every read is a beginning of the final list, and the
longest read is the order. What took effect and is in no read comes after all that is.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from server.tests.consistency.anomalies import Anomaly, AnomalyClass
from server.tests.consistency.history import Outcome, Read, describe
from server.tests.consistency.observations import Observations, OutsideRead


@dataclass
class Orders:
    """The order of each list, the reads that agree with it, and what is wrong with the others."""

    longest: dict[int, tuple[int, ...]]
    agreeing: list[OutsideRead] = field(default_factory=list)
    # The appends to each key that took effect, that nobody read, and that are not lost: they come last.
    unread: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    anomalies: list[Anomaly] = field(default_factory=list)


def order(found: Observations) -> Orders:
    """Orders every list, and finds reads that cannot agree and appends that got lost."""
    longest: dict[int, OutsideRead] = {}
    for read in found.reads:
        if read.key not in longest or len(read.values) > len(longest[read.key].values):
            longest[read.key] = read
    orders = Orders({key: read.values for key, read in longest.items()})
    for read in found.reads:
        if longest[read.key].values[: len(read.values)] == read.values:
            orders.agreeing.append(read)
        else:
            orders.anomalies.append(_disagreement(read, longest[read.key]))
    for read in longest.values():
        orders.anomalies += _against_writer(read, found)
    _place_unread(orders, found)
    return orders


def _disagreement(one: OutsideRead, other: OutsideRead) -> Anomaly:
    story = "\n".join(f"T{read.reader} {describe(Read(read.key, read.values))}" for read in (one, other))
    return Anomaly(AnomalyClass.INCOMPATIBLE, (one.reader, other.reader), story)


def _against_writer(read: OutsideRead, found: Observations) -> Iterator[Anomaly]:
    """A list that has two appends of one transaction the other way round."""
    position = {value: index for index, value in enumerate(read.values)}
    writers = dict.fromkeys(found.writers.get((read.key, value)) for value in read.values)
    for writer in writers:
        if writer is None:
            continue
        places = [position[value] for value in found.appended[writer, read.key] if value in position]
        if places != sorted(places):
            story = f"T{read.reader} {describe(Read(read.key, read.values))}\n{found.transactions[writer].describe()}"
            yield Anomaly(AnomalyClass.INCOMPATIBLE, (read.reader, writer), story)


def _place_unread(orders: Orders, found: Observations) -> None:
    latest: dict[int, OutsideRead] = {}
    for read in found.reads:
        if read.key not in latest or _began_ns(read, found) > _began_ns(latest[read.key], found):
            latest[read.key] = read
    committed = found.committed()
    for (key, value), writer in found.writers.items():
        if writer not in committed or (key, value) in found.seen:
            continue
        if key in latest and _is_due(writer, latest[key], found):
            orders.anomalies.append(_loss(writer, value, latest[key], found))
        else:
            orders.unread[key].append(writer)


def _began_ns(read: OutsideRead, found: Observations) -> int:
    return found.transactions[read.reader].invoked_ns


def _is_due(writer: int, read: OutsideRead, found: Observations) -> bool:
    """Whether a transaction was acknowledged before a read began."""
    transaction = found.transactions[writer]
    return transaction.outcome is Outcome.OK and transaction.completed_ns < _began_ns(read, found)


def _loss(writer: int, value: int, read: OutsideRead, found: Observations) -> Anomaly:
    story = (
        f"{found.transactions[writer].describe()}\nwas acknowledged, and T{read.reader}, which began later,"
        f" {describe(Read(read.key, read.values))} lacks {value}"
    )
    return Anomaly(AnomalyClass.LOST, (writer, read.reader), story)
