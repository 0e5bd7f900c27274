"""The DB-API connection: runs interactive transactions, or commits each statement at once in autocommit mode.

A committed write cannot be rolled back, so in autocommit mode `rollback()` after one raises an error.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from plainsql.client import connect as connect_client
from plainsql.dbapi.exceptions import CommittedError, DatabaseError, InterfaceError, NotSupportedError, translating
from plainsql.dbapi.groups import run_in_groups
from plainsql.dbapi.messages import Message, messages_of
from plainsql.errors import Notice
from plainsql.folding import BATCH_PARAMS, FROZEN_PARAMS, folded, insert_template
from plainsql.interactive.session import InteractiveSession
from plainsql.interactive.texts import is_read, savepoint_in
from plainsql.interactive.unit import Entry
from plainsql.result import Result, TransactionResult
from plainsql.transactions import TransactionBuilder
from plainsql.transport.wire import Steps, T

if TYPE_CHECKING:
    from plainsql.dbapi.cursor import Cursor

# Inserts of so many rows are not rehearsed alone: each rehearsal sends all rows again.
_BULK_ROWS = 1_000
# PostgreSQL's cardinality_violation.
_MET_TWICE = "21000"
Rehearse = Literal["eager", "lazy"]


class BlockingClient(Protocol):
    """What a connection needs of a client: the blocking one, or the asyncio one under SQLAlchemy's greenlets."""

    def query(self, sql: str, *params: Any) -> Result: ...
    def stream(self, sql: str, *params: Any, read_only: bool | None = None) -> Any: ...
    def run_transaction(self, builder: TransactionBuilder) -> TransactionResult: ...
    def interactive(self, *, is_lazy: bool = False) -> InteractiveSession: ...
    def perform(self, steps: Steps[T]) -> T: ...
    def health(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def connect(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 60.0,
    rate_limit_wait_s: float | None = None,
    insecure: bool = False,
    autocommit: bool = False,
    rehearse: Rehearse = "eager",
) -> "Connection":
    """Returns a connection. The settings are those of `plainsql.connect`.

    With `autocommit`, each statement commits at once. With `rehearse="lazy"`, writes without RETURNING are not
    rehearsed until a later statement needs them: fewer requests, but errors can appear as late as at the commit.
    """
    with translating():
        limits = {"timeout_s": timeout_s, "rate_limit_wait_s": rate_limit_wait_s}
        client = connect_client(url, key, database=database, ca_file=ca_file, insecure=insecure, **limits)  # type: ignore[arg-type]  # as above
    return Connection(client, autocommit=autocommit, rehearse=rehearse)


class Connection:
    """A connection in one of the two modes of `plainsql.dbapi`. Between calls, it holds nothing open in the service.

    `messages` has PostgreSQL's notices and warnings at the last commit.
    """

    def __init__(self, client: BlockingClient, *, autocommit: bool = False, rehearse: Rehearse = "eager") -> None:
        if rehearse not in ("eager", "lazy"):
            raise InterfaceError(f"rehearse must be 'eager' or 'lazy', not {rehearse!r}.")
        self._client: BlockingClient | None = client
        self._autocommit = autocommit
        self._is_lazy = rehearse == "lazy"
        self._session = client.interactive(is_lazy=self._is_lazy)
        self._done_writes = 0
        self.messages: list[Message] = []
        # In autocommit mode, those that no cursor has taken.
        self._notices: list[Notice] = []

    @property
    def client(self) -> BlockingClient:
        """The underlying client, for calls that PEP 249 does not have."""
        if self._client is None:
            raise InterfaceError("The connection is closed.")
        return self._client

    @property
    def autocommit(self) -> bool:
        """Whether each statement commits at once. You cannot change it while writes wait for commit()."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if value != self._autocommit:
            if self._session.unit.has_writes or self._session.unit.has_failed:
                raise InterfaceError("A transaction is in progress. Call commit() or rollback() first.")
            with translating():
                self._session.rollback()
            self.drop_notices()
        self._autocommit = value
        self._done_writes = 0

    @property
    def kept_writes(self) -> int:
        """How many writes wait for commit()."""
        return self._session.unit.writes

    def cursor(self) -> "Cursor":
        from plainsql.dbapi.cursor import Cursor  # noqa: PLC0415  # it imports this module

        _ = self.client
        return Cursor(self)

    def run(self, sql: str, params: Sequence[Any], presumed_rows: int | None = None) -> Result | Entry:
        """Returns the statement's result, or its entry if it has no result yet."""
        client = self.client
        if not self._autocommit:
            with translating():
                return client.perform(self._session.execute(sql, params, presumed_rows))
        if savepoint_in(sql) is not None:
            raise NotSupportedError("There are no savepoints in autocommit mode: each statement is a transaction.")
        with translating():
            result = client.query(sql, *params)
        self._notices += result.notices
        if not result.read_only:
            self.note_write()
        return result

    def run_many(self, sql: str, params: Sequence[Sequence[Any]], presumed_rows: int | None = None) -> list[Entry]:
        """Runs a write once for each set of parameters, in few requests."""
        template = insert_template(sql)
        if template is None or (template.is_upsert and self._is_lazy):
            return self._run_all(((sql, each) for each in params), presumed_rows)
        done_before = self._done_writes
        statements = folded(sql, template, params, BATCH_PARAMS if self._autocommit else FROZEN_PARAMS)
        try:
            may_wait = len(params) >= _BULK_ROWS and not template.is_upsert
            return self._run_all(statements, presumed_rows, may_wait=may_wait)
        except DatabaseError as error:
            if error.sqlstate != _MET_TWICE or self._done_writes != done_before:
                raise
        # An upsert can't meet a row twice. Statements of their own can, and nothing has been written.
        self._session.unit.recover()
        return self._run_all(((sql, each) for each in params), presumed_rows)

    def _run_all(
        self, statements: Iterable[tuple[str, Sequence[Any]]], presumed_rows: int | None, *, may_wait: bool = False
    ) -> list[Entry]:
        if self._autocommit:
            return run_in_groups(self.client, statements, self._note_commit)
        with translating():
            steps = self._session.execute_many(list(statements), presumed_rows, may_wait=may_wait)
            return self.client.perform(steps)

    def can_stream(self, sql: str) -> bool:
        """Whether a statement's rows can be streamed. A stream would not see the writes that wait."""
        if self._autocommit:
            return True
        with translating():
            self._session.unit.check()
        return not self._session.unit.has_writes and is_read(sql)

    def learn_count(self, entry: Entry) -> int | None:
        """The number of rows that a write changed. Rehearses it if it waits."""
        if entry.affected_rows is None and entry in self._session.unit.entries and not self._session.unit.has_failed:
            with translating():
                self.client.perform(self._session.rehearse())
        return entry.affected_rows

    def note_write(self) -> None:
        """Records that a write was committed, which rollback() cannot undo."""
        self._done_writes += 1

    def _note_commit(self, done: TransactionResult) -> None:
        self.note_write()
        self._notices += [notice for result in done for notice in result.notices]
        self._notices += done.notices

    def take_messages(self) -> list[Message]:
        """What PostgreSQL reported since the last call, for the cursor that ran the statements."""
        notices, self._notices = self._notices, []
        return messages_of(notices + self._session.take_notices())

    def drop_notices(self) -> None:
        """Forgets what PostgreSQL reported to a call that failed: the next call must not show it."""
        self._notices.clear()
        self._session.take_notices()

    def commit(self) -> None:
        """Commits what ran since the last commit, as one serializable transaction.

        If a result has changed since the program saw it, everything is rolled back with SQLSTATE 40001; run the
        transaction again. After an error in a statement, `commit` raises InternalError until you call `rollback`.

        If `commit` raises an error, nothing was written, unless the error's `outcome` is "unknown" or "committed". In
        that case the response was lost; use the idempotency key in the error's `__cause__` to check the outcome.
        """
        client = self.client
        self._done_writes = 0
        self.messages.clear()
        self.drop_notices()
        with translating():
            client.perform(self._session.commit())
        self.messages += self.take_messages()

    def rollback(self) -> None:
        """Discards what ran since the last commit. In autocommit mode, raises OperationalError after a write."""
        _ = self.client
        with translating():
            self._session.rollback()
        self.drop_notices()
        done, self._done_writes = self._done_writes, 0
        if done:
            writes = "1 write was" if done == 1 else f"{done} writes were"
            raise CommittedError(f"{writes} committed at once (autocommit) and cannot be rolled back.")

    def close(self) -> None:
        """Closes the connection and discards what was not committed."""
        client = self.client
        self._client = None
        client.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()
