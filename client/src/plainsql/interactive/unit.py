"""A unit of work: what an interactive transaction ran, and what to send so that it can go on, or be committed.

Nothing is held open in the service. A statement that must see earlier writes is rehearsed: the writes so far, the
earlier reads and the new statement are sent as one transaction that is rolled back. `commit` sends the list for good.
Each statement carries the digest of the result that the program saw; if one differs, everything is rolled back.

This module only keeps the list. `session.py` uses it:

    unit.check()                           raises if the unit has failed
    unit.fail(reason)                      the unit has failed, until unit.recover()
    sent = unit.rehearsal([entry])         what to send
    unit.note(sent, answer)                remembers digests and frozen inserts
    unit.for_commit()                      what to send for good
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plainsql.errors import TransactionError
from plainsql.interactive.new_objects import Translation, check_oids
from plainsql.interactive.texts import (
    SavepointStatement,
    calls_only_known,
    changes_schema,
    is_ordered,
    is_read,
    mentions_oids,
    reads_no_table,
    returns_columns,
)
from plainsql.statements import first_word, looks_like_a_read
from plainsql.values import encode_json

# More reads than this can't be verified in one transaction. Only a unit that writes verifies its reads.
MAX_VERIFIED_READS = 2_000
# Each rehearsal sends the rows that were inserted before again.
MAX_REHEARSED_ROWS = 50_000


class Entry:
    """One statement of a unit.

    Attributes: `sql`; `params`, encoded as JSON values; `writes`; `expect`, what the program saw, as the service's
    `expect`; `frozen`, the statement that replaces an INSERT, with the values that the rehearsal generated, or
    `unfrozen`, the service's code for why there is none; `is_rehearsed`; `now`, the transaction time of the
    rehearsal in which the program saw its result; `affected_rows`, if known; and `made`, the OIDs by which the program
    knows objects that this unit has made, by the names that they have after this write.
    """

    __slots__ = (
        "affected_rows",
        "expect",
        "frozen",
        "is_rehearsed",
        "made",
        "now",
        "params",
        "sql",
        "unfrozen",
        "writes",
    )

    def __init__(self, sql: str, params: list[Any], *, writes: bool) -> None:
        self.sql = sql
        self.params = params
        self.writes = writes
        self.expect: dict[str, Any] | None = None
        self.frozen: dict[str, Any] | None = None
        self.unfrozen: str | None = None
        self.is_rehearsed = False
        self.now: str | None = None
        self.affected_rows: int | None = None
        self.made: dict[str, int] = {}

    @property
    def is_verified(self) -> bool:
        """Whether it is sent again: a write always, a read unless it depends on no table."""
        return self.writes or not reads_no_table(self.sql)

    @property
    def reads_catalogue(self) -> bool:
        """Whether it reads the catalogue alone, and so may return OIDs."""
        return not self.is_verified and mentions_oids(self.sql)

    def statement(self) -> dict[str, Any]:
        """The statement as it is sent, without what is asked about it."""
        if self.frozen is not None:
            return {"sql": self.frozen["sql"], "params": self.frozen["params"]}
        return {"sql": self.sql, "params": self.params} if self.params else {"sql": self.sql}


class Sent:
    """The statements of one request, and the entries that each of them stands for: none, if it looks up OIDs."""

    __slots__ = ("entries", "statements", "translation")

    def __init__(self) -> None:
        self.statements: list[dict[str, Any]] = []
        self.entries: list[list[Entry]] = []
        self.translation: Translation | None = None

    def add(self, statement: dict[str, Any], entries: list[Entry]) -> None:
        self.statements.append(statement)
        self.entries.append(entries)


class Savepoint(NamedTuple):
    """How much there was of a unit when the savepoint was set."""

    name: str
    entries: int
    unverified_reads: int


class UnitOfWork:
    """The statements of one transaction, its savepoints, and whether it has failed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        # What failed, for programs whose library hides the first error; None if nothing has.
        self.failure: str | None = None
        self._savepoints: list[Savepoint] = []
        self._unverified_reads = 0

    @property
    def writes(self) -> int:
        """How many writes wait for the commit."""
        return sum(entry.writes for entry in self.entries)

    @property
    def has_writes(self) -> bool:
        return any(entry.writes for entry in self.entries)

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    @property
    def nows(self) -> list[str]:
        """The transaction times that results may contain, each once. The service treats them like its own.

        The time of a rehearsal counts only if a statement that is still in the list got its result there.
        """
        return list(dict.fromkeys(entry.now for entry in self.entries if entry.now is not None))

    @property
    def changes_schema(self) -> bool:
        return any(entry.writes and changes_schema(entry.sql) for entry in self.entries)

    def check(self) -> None:
        """Raises TransactionError if an earlier statement failed."""
        if self.failure is not None:
            raise TransactionError(
                "in_failed_sql_transaction",
                "25P02",
                f"An earlier statement of this transaction failed ({self.failure}). Call rollback() first."
                if self.failure
                else "An earlier statement of this transaction failed. Call rollback() first.",
            )

    def fail(self, reason: str) -> None:
        """Nothing can run in this unit, nor can it be committed, until it recovers."""
        self.failure = reason

    def recover(self) -> None:
        """Goes on after an error whose effects are undone."""
        self.failure = None

    def entry(self, sql: str, params: list[Any]) -> Entry:
        """A new entry, which is not in the list yet. Raises TransactionError if the unit is too large for it."""
        entry = Entry(sql, params, writes=not is_read(sql))
        if entry.writes:
            self.check_size()
        check_oids(entry, [oid for each in self.entries for oid in each.made.values()])
        return entry

    def check_size(self) -> None:
        """Raises TransactionError if the unit is too large to write."""
        if self._unverified_reads:
            raise _too_large(
                f"This transaction has read {MAX_VERIFIED_READS + self._unverified_reads} times; at most "
                f"{MAX_VERIFIED_READS} reads can be verified with a write"
            )
        if sum(entry.affected_rows or 0 for entry in self.entries if entry.frozen) > MAX_REHEARSED_ROWS:
            raise _too_large(f"This transaction has inserted more than {MAX_REHEARSED_ROWS} rows that are rehearsed")

    def append(self, entry: Entry) -> None:
        """Adds a statement that ran, or that waits for the next rehearsal or the commit."""
        if not entry.is_verified:
            return
        if not entry.writes and sum(not each.writes for each in self.entries) >= MAX_VERIFIED_READS:
            self._unverified_reads += 1
            if self.has_writes:
                self.check_size()
            return
        self.entries.append(entry)

    def rehearsal(self, new: Sequence[Entry] = ()) -> Sent:
        """What to send to run `new` after everything before it. Only the rows of `new` are wanted."""
        sent = Sent()
        if self.has_writes and len(new) == 1 and new[0].reads_catalogue:
            sent.translation = Translation(new[0])
        for statement, entries in _packed(self.entries):
            statement["rows"] = False
            if not entries[0].is_rehearsed:
                statement |= _questions(entries[0])
            sent.add(statement, entries)
            if sent.translation is not None and (made := _made_by(entries)):
                sent.translation.look_up(sent, made)
        if sent.translation is not None:
            sent.translation.finish(sent)
            return sent
        for entry in new:
            sent.add({**entry.statement(), **_questions(entry)}, [entry])
        return sent

    def rehearsal_of(self, entry: Entry) -> Sent:
        """What to send to run a read on its own."""
        sent = Sent()
        sent.add({**entry.statement(), **_questions(entry)}, [entry])
        return sent

    def for_commit(self) -> Sent:
        """What to send for good. No rows are wanted: the program has seen them."""
        sent = Sent()
        for statement, entries in _packed(self.entries):
            statement["rows"] = False
            sent.add(statement, entries)
        return sent

    def note(self, sent: Sent, answer: Mapping[str, Any]) -> None:
        """Remembers what a rehearsal, or a read on its own, returned."""
        now = answer["transaction"].get("now")
        for statement, entries, result in zip(sent.statements, sent.entries, answer["results"], strict=True):
            if statement.get("digest"):
                _note(entries[0], result)
                entries[0].now = now
        if sent.translation is not None:
            sent.translation.take(answer, next(entry.made for entry in reversed(self.entries) if entry.writes))

    def control(self, statement: SavepointStatement) -> None:
        """Sets, releases or goes back to a savepoint."""
        if statement.verb != "ROLLBACK":
            self.check()
        if statement.verb == "SAVEPOINT":
            self._savepoints.append(Savepoint(statement.name, len(self.entries), self._unverified_reads))
            return
        index = self._savepoint(statement.name)
        if statement.verb == "RELEASE":
            del self._savepoints[index:]
            return
        savepoint = self._savepoints[index]
        del self.entries[savepoint.entries :], self._savepoints[index + 1 :]
        self._unverified_reads = savepoint.unverified_reads
        self.recover()

    def must_rehearse(self, statement: SavepointStatement) -> bool:
        """Whether to rehearse before a release: a write that fails must fail in the block that it belongs to."""
        if statement.verb != "RELEASE" or self.has_failed:
            return False
        start = self._savepoints[self._savepoint(statement.name)].entries
        return any(entry.writes and not entry.is_rehearsed for entry in self.entries[start:])

    def clear(self) -> None:
        """Forgets everything: the next statement begins a new unit."""
        self.entries.clear()
        self._savepoints.clear()
        self._unverified_reads = 0
        self.recover()

    def _savepoint(self, name: str) -> int:
        for index in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[index].name == name:
                return index
        message = f"Savepoint {name!r} doesn't exist."
        self.fail(message)
        raise TransactionError("invalid_savepoint_specification", "3B001", message)


def _packed(entries: Iterable[Entry]) -> list[tuple[dict[str, Any], list[Entry]]]:
    """The entries as statements, with their expectations.

    Equal reads between two writes are sent once, and adjacent frozen inserts into one table are sent as one.
    """
    packed: list[tuple[dict[str, Any], list[Entry]]] = []
    seen: set[str] = set()
    for entry in entries:
        statement = entry.statement()
        if entry.expect is not None:
            statement["expect"] = entry.expect
        if entry.writes:
            seen.clear()
            if packed and _can_merge(packed[-1][1][0], entry):
                packed[-1] = (_merged(packed[-1][0], statement), [*packed[-1][1], entry])
                continue
        elif calls_only_known(entry.sql):
            key = encode_json(statement)
            if key in seen:
                continue
            seen.add(key)
        else:
            # A function may write, so it is called as often as the program called it.
            seen.clear()
        packed.append((statement, [entry]))
    return packed


def _can_merge(first: Entry, second: Entry) -> bool:
    """Whether two adjacent inserts can be one. What they return must be columns, which are known already.

    A trigger could tell the difference.
    """
    if first.frozen is None or second.frozen is None or first.frozen["sql"] != second.frozen["sql"]:
        return False
    return bool(first.frozen.get("mergeable")) and returns_columns(first.frozen["sql"])


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One insert of the rows of both. It returns these rows or fails, so there is nothing to verify."""
    return {"sql": first["sql"], "params": [first["params"][0] + second["params"][0]]}


def _made_by(entries: Iterable[Entry]) -> dict[str, int]:
    return {name: oid for entry in entries for name, oid in entry.made.items()}


def _questions(entry: Entry) -> dict[str, bool]:
    """What to ask about a statement that runs for the first time."""
    return {"digest": True, "freeze": True} if _may_freeze(entry) else {"digest": True}


def _may_freeze(entry: Entry) -> bool:
    return entry.writes and first_word(entry.sql) == "INSERT"


def _note(entry: Entry, result: Mapping[str, Any]) -> None:
    entry.is_rehearsed = True
    entry.affected_rows = result["affected_rows"]
    if entry.writes and changes_schema(entry.sql):
        return
    # The order of what a write returns is PostgreSQL's choice, unless it is a SELECT that locks its rows.
    kind = "digest" if looks_like_a_read(entry.sql) and is_ordered(entry.sql) else "multiset_digest"
    entry.expect = {kind: result[kind]}
    entry.unfrozen = result.get("frozen_reason")
    if frozen := result.get("frozen"):
        entry.frozen = dict(frozen)


def _too_large(reason: str) -> TransactionError:
    return TransactionError(
        "transaction_too_large", "54000", f"{reason}. Commit in smaller parts, or use autocommit for bulk work."
    )
