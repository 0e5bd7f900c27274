"""The DB-API cursor: runs statements on its connection and returns their rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from plainsql.dbapi.exceptions import DatabaseError, InterfaceError, ProgrammingError, translating
from plainsql.dbapi.messages import Message, messages_of
from plainsql.dbapi.parameters import numbered, numbered_many
from plainsql.interactive.texts import is_select
from plainsql.interactive.unit import Entry
from plainsql.result import Result, Row
from plainsql.statements import first_word

if TYPE_CHECKING:
    from plainsql.dbapi.connection import Connection
    from plainsql.streaming import Stream

_COUNTED = ("INSERT", "UPDATE", "DELETE", "MERGE")
Description = tuple[str, str, None, None, None, None, None]


class Cursor:
    """Call `execute`, then fetch. For large results, `stream` fetches the rows as they arrive.

    `messages` has PostgreSQL's notices and warnings of the last call, each as a class and its instance.
    """

    arraysize = 1

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.description: list[Description] | None = None
        self._rowcount = -1
        self.lastrowid: None = None
        self.messages: list[Message] = []
        # Whether reads are streamed.
        self.streams = False
        self._rows: Iterator[Row] | None = None
        self._stream: Stream | None = None
        self._is_closed = False
        # The writes of the last call whose counts are kept with the transaction.
        self._entries: list[Entry] = []

    @property
    def rowcount(self) -> int:
        """How many rows the last statement returned or changed; -1 if unknown.

        A write waits for the next rehearsal or the commit with `rehearse="lazy"`, and in an `executemany` of many rows.
        Asking for its row count rehearses it, unless the cursor is closed. A count that was not known yet at the commit
        is known after it.
        """
        if not self._entries:
            return self._rowcount
        if first_word(self._entries[0].sql) not in _COUNTED:
            return -1
        if self._is_closed:
            counts = [entry.affected_rows for entry in self._entries]
        else:
            counts = [self.connection.learn_count(entry) for entry in self._entries]
            self.messages += self.connection.take_messages()
        return -1 if None in counts else sum(count for count in counts if count is not None)

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
        """Runs one statement (see `plainsql.dbapi`)."""
        sql, params = numbered(operation, parameters)
        return self.execute_numbered(sql, params)

    def execute_numbered(self, sql: str, params: Sequence[Any], presumed_rows: int | None = None) -> "Cursor":
        """The same, for a statement whose parameters are `$1`, `$2`, …

        With `rehearse="lazy"`, `presumed_rows` is taken for the number of rows that a write changes. If it changes
        another number, the commit fails.
        """
        if self.streams and is_select(sql):
            return self.stream(sql, params)
        self._begin()
        self._take(self.connection.run(sql, list(params), presumed_rows))
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> "Cursor":
        """Runs a statement once for each set of parameters, in few requests.

        An INSERT is sent as few statements with many rows each. In autocommit mode, this is one transaction if it fits
        one request, and otherwise several.
        """
        return self.executemany_numbered(*numbered_many(operation, seq_of_parameters))

    def executemany_numbered(
        self, sql: str, params: Iterable[Sequence[Any]], presumed_rows: int | None = None
    ) -> "Cursor":
        """The same, for a statement whose parameters are `$1`, `$2`, …"""
        self._begin()
        if all_params := [list(each) for each in params]:
            self._entries = self.connection.run_many(sql, all_params, presumed_rows)
        else:
            self._rowcount = 0
        self.messages += self.connection.take_messages()
        return self

    def stream(self, sql: str, params: Sequence[Any] = ()) -> "Cursor":
        """Runs a read and fetches its rows as they arrive, in constant memory. Parameters are `$1`, `$2`, …

        In a transaction, what a stream read is not verified at the commit. After a write, or if the statement itself
        writes, the rows are not streamed but fetched whole.
        """
        self._begin()
        connection = self.connection
        if connection.can_stream(sql):
            try:
                return self._open_stream(sql, params)
            except DatabaseError as error:
                if connection.autocommit or error.code != "read_only_sql_transaction":
                    raise
        self._take(connection.run(sql, list(params)))
        return self

    def _open_stream(self, sql: str, params: Sequence[Any]) -> "Cursor":
        connection = self.connection
        with translating():
            read_only = None if connection.autocommit else True
            self._stream = connection.client.stream(sql, *params, read_only=read_only)
        if not self._stream.read_only:
            connection.note_write()
        self.description = _description(self._stream.columns, self._stream.types)
        self._rows = self._streamed(self._stream)
        return self

    def _streamed(self, stream: "Stream") -> Iterator[Row]:
        yield from stream
        self.messages += messages_of(stream.notices)

    def _take(self, result: Result | Entry) -> None:
        """Sets the result of the last statement."""
        self.messages += self.connection.take_messages()
        if isinstance(result, Entry):
            self._entries = [result]
            return
        self.description = _description(result.columns, result.types) if result.columns else None
        self._rowcount = len(result) if result.columns else result.affected_rows
        if not result.columns and result.command.partition(" ")[0] not in _COUNTED:
            self._rowcount = -1
        self._rows = iter(result.rows) if result.columns else None

    def fetchone(self) -> Row | None:
        rows = self._result()
        with translating():
            return next(rows, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        rows = self._result()
        with translating():
            return [row for _, row in zip(range(self.arraysize if size is None else size), rows, strict=False)]

    def fetchall(self) -> list[Row]:
        rows = self._result()
        with translating():
            return list(rows)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        rows = self._result()
        with translating():
            return next(rows)

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing. PEP 249 requires it, but PostgreSQL determines the types."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing. PEP 249 requires it, but values are never truncated."""

    def close(self) -> None:
        """Closes the cursor. `rowcount` stays, as programs ask for it afterwards."""
        count, entries = self._rowcount, self._entries
        self._reset()
        self._rowcount, self._entries = count, entries
        self._is_closed = True

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _result(self) -> Iterator[Row]:
        self._check_open()
        if self._rows is None:
            raise ProgrammingError("No result to fetch from. Run a statement that returns rows first.")
        return self._rows

    def _begin(self) -> None:
        self._reset()
        self.connection.drop_notices()

    def _reset(self) -> None:
        self._check_open()
        if self._stream is not None:
            self._stream.close()
        self._stream = self._rows = self.description = None
        self._entries = []
        self._rowcount = -1
        self.messages.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("The cursor is closed.")
        _ = self.connection.client


def _description(columns: tuple[str, ...], types: tuple[str, ...]) -> list[Description]:
    return [(name, kind, None, None, None, None, None) for name, kind in zip(columns, types, strict=True)]
