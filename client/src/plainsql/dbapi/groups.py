"""Runs many statements in autocommit mode, in as few transactions as the tier's limits allow.

If a transaction fails, those before it stay committed; a note on the error says so, and its outcome is "unknown".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from plainsql.dbapi.exceptions import DatabaseError, translating
from plainsql.folding import size_of
from plainsql.interactive.unit import Entry
from plainsql.result import TransactionResult
from plainsql.transactions import TransactionBuilder
from plainsql.transport.protocol import Options

# The tiers allow 10,000, 1,000 and 100 statements in a transaction. The client does not know the tier.
_STATEMENTS = (10_000, 1_000, 100)
# As a request's body, this is below every tier's limit of 4 MiB and more.
_GROUP_BYTES = 2 << 20
Statement = tuple[str, Sequence[Any]]


class TransactionRunner(Protocol):
    """What sends the transactions: a client."""

    def run_transaction(self, builder: TransactionBuilder) -> TransactionResult: ...


def run_in_groups(
    client: TransactionRunner, statements: Iterable[Statement], note_commit: Callable[[TransactionResult], None]
) -> list[Entry]:
    """Runs the statements in order and returns an entry with the row count for each.

    Calls `note_commit` with the result of each transaction.
    """
    entries: list[Entry] = []
    for group in _groups(statements):
        left = group
        for size in _STATEMENTS:
            try:
                while left:
                    done = _run(client, left[:size])
                    entries += _entries(left[:size], done)
                    left = left[size:]
                    note_commit(done)
            except DatabaseError as error:
                if error.code == "too_many_statements" and size > _STATEMENTS[-1]:
                    continue
                if entries:
                    rows = sum(entry.affected_rows or 0 for entry in entries)
                    if error.outcome in ("not_executed", "rolled_back"):
                        # This holds for the last transaction, but not for all statements.
                        error.outcome = "unknown"
                    error.add_note(f"The statements before this one are committed: {rows:,} rows.")
                raise
    return entries


def _run(client: TransactionRunner, statements: Sequence[Statement]) -> TransactionResult:
    together = TransactionBuilder(Options())
    for sql, params in statements:
        together.add(sql, *params)
    with translating():
        return client.run_transaction(together)


def _entries(statements: Sequence[Statement], done: TransactionResult) -> Iterator[Entry]:
    for (sql, _), result in zip(statements, done.results, strict=True):
        entry = Entry(sql, [], writes=True)
        entry.affected_rows = result.affected_rows
        yield entry


def _groups(statements: Iterable[Statement]) -> Iterator[list[Statement]]:
    remaining = iter(statements)
    while group := list(_first_group(remaining)):
        yield group


def _first_group(statements: Iterator[Statement]) -> Iterator[Statement]:
    size_bytes = 0
    for sql, params in islice(statements, _STATEMENTS[0]):
        yield sql, params
        size_bytes += size_of(sql) + sum(map(size_of, params))
        if size_bytes > _GROUP_BYTES:
            return
