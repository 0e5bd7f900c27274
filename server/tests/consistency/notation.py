"""A short notation to write histories by hand.

`history(ok(a(1, 1), r(2)), fail(…), info(…))`: transactions that all overlap, unless `at(…)` gives one its interval.
"""

from dataclasses import dataclass

from server.tests.consistency.history import Append, History, Operation, Outcome, Read, Transaction

_ALWAYS = (0, 1_000)


@dataclass(frozen=True)
class Written:
    """A transaction that has no number yet."""

    outcome: Outcome
    operations: tuple[Operation, ...]
    interval: tuple[int, int] = _ALWAYS

    def at(self, begin: int, end: int) -> "Written":
        return Written(self.outcome, self.operations, (begin, end))


def a(key: int, value: int) -> Append:
    return Append(key, value)


def r(key: int, *values: int) -> Read:
    return Read(key, values)


def unread(key: int) -> Read:
    return Read(key, None)


def ok(*operations: Operation) -> Written:
    return Written(Outcome.OK, operations)


def fail(*operations: Operation) -> Written:
    return Written(Outcome.FAIL, operations)


def info(*operations: Operation) -> Written:
    return Written(Outcome.INFO, operations)


def history(*transactions: Written) -> History:
    return [
        Transaction(number, number, written.outcome, *written.interval, written.operations)
        for number, written in enumerate(transactions)
    ]
