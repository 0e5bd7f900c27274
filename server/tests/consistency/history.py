"""What clients did and saw: the history that the checker judges.

Owns the words. A history is a list of transactions; each appends numbers to lists and reads lists. No number is
appended to a list twice, so that a reader of a value knows who wrote it. Times are of one clock, and a transaction's
interval goes from before its request was sent until after its answer was read.
"""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import msgspec


class Outcome(Enum):
    """The outcome that was reported to the client."""

    OK = "ok"
    # Certainly nothing happened.
    FAIL = "fail"
    # It may have happened, may be about to, or never will: the answer was lost.
    INFO = "info"


class Append(msgspec.Struct, frozen=True, tag="append"):
    """A number was put at the end of a list."""

    key: int
    value: int


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A whole list was read; None where the answer is not known."""

    key: int
    values: tuple[int, ...] | None


Operation = Append | Read


class Transaction(msgspec.Struct, frozen=True):
    """Operations that were sent as one, in order. `completed_ns` of one without an answer means nothing."""

    id: int
    process: int
    outcome: Outcome
    invoked_ns: int
    completed_ns: int
    operations: tuple[Operation, ...]
    # Of one that is not known to be OK: that the answer said so, though not what was read.
    is_committed: bool = False

    def describe(self) -> str:
        """The transaction in one line, for people."""
        return f"T{self.id} ({self.outcome.value}, process {self.process}) [{' '.join(map(describe, self.operations))}]"


History = list[Transaction]


def describe(operation: Operation) -> str:
    """An operation in a few characters, for people."""
    if isinstance(operation, Append):
        return f"append({operation.key}, {operation.value})"
    if operation.values is None:
        return f"read({operation.key}) = ?"
    shown = [*map(str, operation.values)]
    if len(shown) > 12:
        shown = [*shown[:2], "…", *shown[-9:]]
    return f"read({operation.key}) = [{' '.join(shown)}]"


class MalformedHistory(Exception):
    """The history breaks a promise of its own, so that nothing can be said about who produced it."""


def require_well_formed(history: Iterable[Transaction]) -> None:
    """Raises MalformedHistory."""
    ids: set[int] = set()
    appended: set[tuple[int, int]] = set()
    for transaction in history:
        if transaction.id in ids:
            raise MalformedHistory(f"there are two transactions T{transaction.id}")
        ids.add(transaction.id)
        if transaction.outcome is Outcome.OK and transaction.completed_ns < transaction.invoked_ns:
            raise MalformedHistory(f"T{transaction.id} ends before it begins")
        for operation in transaction.operations:
            if isinstance(operation, Append):
                if (operation.key, operation.value) in appended:
                    raise MalformedHistory(f"{describe(operation)} is there twice")
                appended.add((operation.key, operation.value))
            elif operation.values is None and transaction.outcome is Outcome.OK:
                raise MalformedHistory(f"T{transaction.id} is ok and {describe(operation)}")


def save(history: Iterable[Transaction], path: Path) -> None:
    """Writes a transaction a line."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(list(history)))


def load(path: Path) -> History:
    """What `save` wrote."""
    return msgspec.json.Decoder(Transaction).decode_lines(path.read_bytes())
