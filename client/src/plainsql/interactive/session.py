"""Runs the statements of interactive transactions: sends what `unit.py` decides, and reads the responses.

The methods are generators, like those of `protocol.py`, so both clients share them. A read before the first write runs
on its own. Everything after it is rehearsed. `commit` sends the unit once, for good, with an idempotency key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from plainsql.errors import Error, Notice, ResultError, ServiceError, TransactionError, notices_in
from plainsql.interactive.conflicts import is_conflict
from plainsql.interactive.texts import changes_schema, draws_number, has_returning, is_read, savepoint_in
from plainsql.interactive.unit import Entry, Sent, UnitOfWork
from plainsql.result import Result, TransactionResult
from plainsql.statements import first_word
from plainsql.transport.protocol import Core, Options
from plainsql.transport.wire import Steps, T
from plainsql.values import encode_json

# What to do if an INSERT returns other values each time, by the service's code for why it can't be repeated.
_UNFROZEN = {
    "triggers": "The table has a trigger that runs before the insert of a row. To return generated values, write the "
    "statement as INSERT INTO … (columns) VALUES … without DEFAULT, or pass the values yourself, or use autocommit.",
    "on_conflict": "An upsert can't return generated values. Insert in a savepoint instead, or use autocommit.",
    "reads_tables": "An INSERT that reads tables can't return generated values. Read the rows first, then insert them.",
    "calls_code": "An INSERT that calls your own functions, or has them in defaults, can't return generated values. "
    "Pass the values yourself, or use autocommit.",
    "row_security": "With row security, an INSERT can't return generated values. Pass the values yourself.",
}
# PostgreSQL's errors for constraints that a concurrent commit can cause to be violated.
_VIOLATIONS = frozenset(["23001", "23503", "23505", "23P01"])
_QUESTIONS = ("digest", "freeze")
_COUNTED = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE"])
# In the service's message.
_SIZE_LIMIT = re.compile(r"limit of (\d+) bytes")


class InteractiveSession:
    """Runs one unit of work after the other.

    With `is_lazy`, a write without RETURNING is not rehearsed until a later statement needs it. This saves requests;
    its errors then appear later, at the latest at the commit. `max_retries` limits how often the service runs a request
    again after a conflict.

    Only one operation runs at a time: each statement depends on those before it. A second one raises TransactionError.
    """

    def __init__(
        self,
        core: Core,
        options: Options = Options(),  # noqa: B008
        *,
        is_lazy: bool = False,
        max_retries: int | None = None,
    ) -> None:
        self.unit = UnitOfWork()
        # What PostgreSQL reported, until it is taken: once for each statement, however often it is rehearsed.
        self.notices: list[Notice] = []
        self._core = core
        self._options = options
        self._is_lazy = is_lazy
        self._max_retries = max_retries
        self._lock = Lock()

    def execute(self, sql: str, params: Sequence[Any], presumed_rows: int | None = None) -> Steps[Result | Entry]:
        """Runs a statement. Returns its result, or its entry if it waits for the next rehearsal or the commit.

        A lazy session takes `presumed_rows` for the number of rows that a write changes. The service checks it.
        """
        return (yield from self._alone(self._execute(sql, params, presumed_rows)))

    def _execute(self, sql: str, params: Sequence[Any], presumed_rows: int | None) -> Steps[Result | Entry]:
        if (savepoint := savepoint_in(sql)) is not None:
            if self.unit.must_rehearse(savepoint):
                yield from self._guarded(self._rehearse([]))
            self.unit.control(savepoint)
            return Entry(sql, [], writes=True)
        self.unit.check()
        if draws_number(sql) and not self.unit.changes_schema:
            # Sequences are not transactional: nothing in the unit affects them, and neither does a rollback.
            options = self._options._replace(idempotency_key=None)
            return (yield from self._guarded(self._query(sql, params, options)))
        entry = self._entry(sql, params)
        if not entry.writes and not self.unit.has_writes:
            return (yield from self._guarded(self._read(entry)))
        if self._waits(entry):
            self._keep(entry, presumed_rows)
            return entry
        return (yield from self._guarded(self._rehearse([entry])))

    def query(self, sql: str, params: Sequence[Any]) -> Steps[Result]:
        """Runs a statement and returns its result, which is empty if the statement waits."""
        done = yield from self.execute(sql, params)
        return done if isinstance(done, Result) else _empty_result(done)

    def execute_many(
        self,
        statements: Sequence[tuple[str, Sequence[Any]]],
        presumed_rows: int | None = None,
        *,
        may_wait: bool = False,
    ) -> Steps[list[Entry]]:
        """Runs writes with their parameters, in one rehearsal. If they may wait, they run with the next statement."""
        return (yield from self._alone(self._execute_many(statements, presumed_rows, may_wait=may_wait)))

    def _execute_many(
        self, statements: Sequence[tuple[str, Sequence[Any]]], presumed_rows: int | None, *, may_wait: bool
    ) -> Steps[list[Entry]]:
        self.unit.check()
        entries = [self._entry(sql, params) for sql, params in statements]
        with self._guard():
            self.unit.check_size()
        for entry in entries:
            # Its rows are not wanted, even if it is a read.
            entry.writes = True
        if may_wait or self._waits(entries[0]):
            for entry in entries:
                self._keep(entry, presumed_rows)
        else:
            yield from self._guarded(self._rehearse(entries))
        return entries

    def rehearse(self) -> Steps[None]:
        """Rehearses the writes that wait."""
        self.unit.check()
        yield from self._alone(self._guarded(self._rehearse([])))

    def commit(self) -> Steps[TransactionResult | None]:
        """Sends the unit for good and begins a new one. Fills in the row counts of writes that waited.

        Returns None if there was nothing to send, because the unit only read. Raises TransactionError if the unit has
        failed; it stays failed until it is rolled back.
        """
        return (yield from self._alone(self._commit()))

    def rollback(self) -> None:
        """Forgets the unit. Nothing is sent."""
        if not self._lock.acquire(blocking=False):
            raise _in_progress()
        self.unit.clear()
        self._lock.release()

    def take_notices(self) -> list[Notice]:
        """What PostgreSQL reported since the last call."""
        taken, self.notices = self.notices, []
        return taken

    def _alone(self, steps: Steps[T]) -> Steps[T]:
        """Runs steps, unless others are under way. Two at once would not know of each other."""
        if not self._lock.acquire(blocking=False):
            raise _in_progress()
        try:
            return (yield from steps)
        finally:
            self._lock.release()

    def _commit(self) -> Steps[TransactionResult | None]:
        self.unit.check()
        sent, nows = self.unit.for_commit(), list(self.unit.nows)
        has_writes = self.unit.has_writes
        self.unit.clear()
        if not has_writes:
            return None
        try:
            done = yield from self._core.transaction(sent.statements, self._options, self._max_retries, nows)
        except ServiceError as error:
            yield from self._check_reads(error, sent, nows)
            _attribute(error, sent, [])
            raise
        for entries, result in zip(sent.entries, done.results, strict=True):
            if entries[0].affected_rows is None:
                entries[0].affected_rows = result.affected_rows
            if not entries[0].is_rehearsed:
                self.notices += result.notices
        self.notices += done.notices
        return done

    def _query(self, sql: str, params: Sequence[Any], options: Options) -> Steps[Result]:
        """Runs a statement that isn't part of the unit."""
        result = yield from self._core.query(sql, params, options)
        self.notices += result.notices
        return result

    def _entry(self, sql: str, params: Sequence[Any]) -> Entry:
        from plainsql.parameters import encode_params  # noqa: PLC0415  # slow to import

        if is_read(sql):
            # Without it, the transaction is complete: nothing was sent.
            encoded = encode_params(params)
            with self._guard():
                return self.unit.entry(sql, encoded)
        with self._guard():
            return self.unit.entry(sql, encode_params(params))

    def _keep(self, entry: Entry, presumed_rows: int | None) -> None:
        if presumed_rows is not None:
            entry.expect = {"affected_rows": presumed_rows}
            entry.affected_rows = presumed_rows
        self.unit.append(entry)

    def _waits(self, entry: Entry) -> bool:
        """Whether a write can wait for the next rehearsal, because the program needs no result of it."""
        if not entry.writes:
            return False
        if changes_schema(entry.sql):
            return True
        return self._is_lazy and first_word(entry.sql) in _COUNTED and not has_returning(entry.sql)

    def _guarded(self, steps: Steps[T]) -> Steps[T]:
        with self._guard():
            return (yield from steps)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """If an error is raised in it, the unit has failed: the rest of it must not be committed alone."""
        try:
            yield
        except BaseException as error:
            self.unit.fail(str(error).partition("\n")[0])
            raise

    def _read(self, entry: Entry) -> Steps[Result]:
        """Runs a read on its own, before the first write."""
        options = self._options._replace(read_only=True, idempotency_key=None)
        try:
            if not entry.is_verified:
                return (yield from self._query(entry.sql, entry.params, options))
            return (yield from self._send(self.unit.rehearsal_of(entry), [entry], options, []))
        except ServiceError as error:
            if error.code != "read_only_sql_transaction":
                raise
        # It writes, or locks rows, after all.
        entry.writes = True
        self.unit.check_size()
        return (yield from self._rehearse([entry]))

    def _rehearse(self, new: list[Entry]) -> Steps[Result]:
        options = self._options._replace(idempotency_key=None)
        return (yield from self._send(self.unit.rehearsal(new), new, options, self.unit.nows))

    def _send(self, sent: Sent, new: list[Entry], options: Options, nows: list[str]) -> Steps[Result]:
        """Sends statements, notes what came back, and returns the result of the last one."""
        try:
            answer = yield from self._core.rehearsal(sent.statements, options, self._max_retries, nows)
        except ServiceError as error:
            yield from self._check_reads(error, sent, nows)
            _attribute(error, sent, new)
            raise
        self.unit.note(sent, answer)
        for entry in new:
            self.unit.append(entry)
        result = Result(answer["results"][-1], request_id=answer["request_id"], as_sent=options.as_sent)
        result.notices = _new_notices(sent, answer)
        self.notices += result.notices
        if result.truncated and options.max_rows is None:
            raise ResultError(
                f"The result exceeds your tier's limit of {len(result)} rows. Use a stream, which a transaction reads "
                "only before its first write and doesn't verify."
            )
        return result

    def _check_reads(self, error: ServiceError, sent: Sent, nows: list[str]) -> Steps[None]:
        """If a constraint is violated because of a concurrent commit, raises 40001: the program read an older state.

        PostgreSQL checks constraints against what is committed, but reads see the state when the request began. So the
        results that the program saw before the failed statement are compared once more, in a request of its own. If
        they are the same, or can't be compared, the error is what the program must see.
        """
        seen = _seen_before(error, sent)
        if not seen:
            return
        options = self._options._replace(idempotency_key=None)
        try:
            yield from self._core.rehearsal(seen, options, self._max_retries, nows)
        except Error as found:
            if isinstance(found, ServiceError) and is_conflict(found):
                _attribute(found, sent, [])
                raise found from error


def _seen_before(error: ServiceError, sent: Sent) -> list[dict[str, Any]]:
    """The statements up to the last one whose result the program saw before a constraint was violated."""
    if error.sqlstate not in _VIOLATIONS:
        return []
    # Without a number, it was a deferred constraint, at the commit.
    before = sent.statements[: error.statement_index]
    while before and not _is_seen(before[-1], sent.entries[len(before) - 1]):
        before.pop()
    return [{name: value for name, value in each.items() if name not in _QUESTIONS} for each in before]


def _is_seen(statement: Mapping[str, Any], entries: Sequence[Entry]) -> bool:
    """Whether the result may change. A frozen insert returns the same rows, or fails."""
    return "expect" in statement and entries[0].frozen is None


def _new_notices(sent: Sent, answer: Mapping[str, Any]) -> tuple[Notice, ...]:
    """The notices of the statements that ran for the first time: the last one, and those that waited."""
    last = len(sent.statements) - 1
    ran = [at for at, statement in enumerate(sent.statements) if at == last or statement.get("digest")]
    return tuple(notice for at in ran for notice in notices_in(answer["results"][at]))


def _attribute(error: ServiceError, sent: Sent, new: list[Entry]) -> None:
    """Says which statement failed, if the program wrote it in this form."""
    if error.code == "request_too_large":
        error.hint = _size_hint(error, sent)
    index, error.statement_index = error.statement_index, None
    if index is not None and index < len(sent.entries) and sent.entries[index]:
        entry = sent.entries[index][0]
        error.sql = entry.sql if entry.frozen is None else None
        if error.code == "volatile_read" and entry.unfrozen in _UNFROZEN:
            error.hint = _UNFROZEN[entry.unfrozen]
        if entry not in new and error.sqlstate != "40001":
            error.statement_index = index
            error.earlier_sql = entry.sql


def _size_hint(error: ServiceError, sent: Sent) -> str:
    """What to do if a transaction doesn't fit one request, with its size, and how much of it would fit."""
    params = sum(len(statement.get("params", ())) for statement in sent.statements)
    size_bytes = len(encode_json(sent.statements).encode())
    limit = _SIZE_LIMIT.search(error.message)
    # Rounded down, because values differ in size.
    fitting = int(params * int(limit[1]) / size_bytes * 0.9) if limit else 0
    parts = f" of at most {fitting:,} parameters" if fitting else ""
    return (
        f"A transaction is sent as one request. This one has {params:,} parameters (rows × columns) and needs "
        f"{size_bytes:,} bytes. Nothing was written. Commit in parts{parts}, or use autocommit (?autocommit=true in an "
        "SQLAlchemy URL), or the client's insert_rows() or insert_frame(), which take any number of rows."
    )


def _in_progress() -> TransactionError:
    error = TransactionError(
        "object_in_use",
        "55006",
        "Another operation of this transaction is in progress. Wait for its end, or begin another transaction for each "
        "task or thread.",
    )
    # The transaction goes on.
    error.outcome = "not_executed"
    return error


def _empty_result(entry: Entry) -> Result:
    """The result of a statement that waits: it has no rows, and its row count isn't known yet."""
    fields = {"columns": [], "types": [], "rows": [], "affected_rows": 0, "truncated": False, "timings": {"exec_us": 0}}
    return Result({**fields, "command": first_word(entry.sql)})
