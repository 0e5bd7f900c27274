"""The DB-API cursor: runs statements on its connection and returns their rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from plainsql.dbapi.exceptions import InterfaceError, ProgrammingError, translating
from plainsql.dbapi.parameters import numbered
from plainsql.result import Result, Row

if TYPE_CHECKING:
    from plainsql.dbapi.connection import Connection
    from plainsql.streaming import Stream

Description = tuple[str, str, None, None, None, None, None]


class Cursor:
    """Call `execute`, then fetch. For large results, `stream` fetches the rows as they arrive."""

    arraysize = 1

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.description: list[Description] | None = None
        self.rowcount = -1
        self.lastrowid: None = None
        # Whether reads are streamed.
        self.streams = False
        self._rows: Iterator[Row] | None = None
        self._stream: Stream | None = None
        self._is_closed = False
        self._is_kept = False

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
        """Runs one statement, or buffers it until commit() (see `plainsql.dbapi`)."""
        sql, params = numbered(operation, parameters)
        return self.execute_numbered(sql, params)

    def execute_numbered(self, sql: str, params: Sequence[Any]) -> "Cursor":
        """The same, for a statement whose parameters are `$1`, `$2`, …"""
        if self.streams and self.connection.is_read(sql):
            return self.stream(sql, params)
        self._reset()
        result = self.connection.run(sql, list(params), self)
        if result is None:
            self._is_kept = True
        else:
            self.take(result)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> "Cursor":
        """Runs a statement once for each set of parameters. In autocommit mode, this is one transaction."""
        return self._execute_all([numbered(operation, parameters) for parameters in seq_of_parameters])

    def executemany_numbered(self, sql: str, params: Iterable[Sequence[Any]]) -> "Cursor":
        """The same, for a statement whose parameters are `$1`, `$2`, …"""
        return self._execute_all([(sql, list(each)) for each in params])

    def _execute_all(self, statements: list[tuple[str, list[Any]]]) -> "Cursor":
        self._reset()
        if not statements:
            self.rowcount = 0
            return self
        if not self.connection.autocommit:
            # Each result would replace the previous one, so every statement gets its own cursor.
            for sql, params in statements:
                self.connection.keep(sql, params, Cursor(self.connection))
            self._is_kept = True
            return self
        together = self.connection.client.transaction()
        with translating():
            for sql, params in statements:
                together.add(sql, *params)
            self.rowcount = together.run().affected_rows
        self.connection.note_write()
        return self

    def stream(self, sql: str, params: Sequence[Any] = ()) -> "Cursor":
        """Runs a read and fetches its rows as they arrive, in constant memory. Parameters are `$1`, `$2`, …

        In buffered mode, the statement must not write, because the write could not be rolled back.
        """
        self._reset()
        self.connection.refuse_stale_read()
        read_only = None if self.connection.autocommit else True
        with translating():
            self._stream = self.connection.client.stream(sql, *params, read_only=read_only)
        if not self._stream.read_only:
            self.connection.note_write()
        self.description = _description(self._stream.columns, self._stream.types)
        self._rows = self._stream
        return self

    def take(self, result: Result) -> None:
        """Sets the result of the last statement, at once or at the commit."""
        self._is_kept = False
        self.description = _description(result.columns, result.types) if result.columns else None
        self.rowcount = len(result) if result.columns else result.affected_rows
        if not result.columns and result.command.partition(" ")[0] not in ("INSERT", "UPDATE", "DELETE", "MERGE"):
            self.rowcount = -1
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
        self._reset()
        self._is_closed = True

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _result(self) -> Iterator[Row]:
        self._check_open()
        if self._is_kept:
            raise ProgrammingError("The statement is buffered until commit(). Its result is available afterwards.")
        if self._rows is None:
            raise ProgrammingError("No result to fetch from. Run a statement that returns rows first.")
        return self._rows

    def _reset(self) -> None:
        self._check_open()
        if self._stream is not None:
            self._stream.close()
        self._stream = self._rows = self.description = None
        self._is_kept = False
        self.rowcount = -1

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("The cursor is closed.")
        _ = self.connection.client


def _description(columns: tuple[str, ...], types: tuple[str, ...]) -> list[Description]:
    return [(name, kind, None, None, None, None, None) for name, kind in zip(columns, types, strict=True)]
