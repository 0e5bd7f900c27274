"""Streamed results: parses NDJSON into rows as they arrive, and iterates over them.

A stream without its closing line has failed. Memory use is bounded by the size of one socket read.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from plainsql.errors import Notice, StreamBroken, notices_in, service_error
from plainsql.result import Row, make_rows
from plainsql.transport.driver import finish
from plainsql.transport.protocol import StreamFormat
from plainsql.transport.wire import Lost, Response, Source
from plainsql.values import decode_json

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class RowLines:
    """Parses the bytes of a stream into rows. `finished` holds the closing object once it has arrived."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.types: tuple[str, ...] = ()
        self.request_id = ""
        self.finished: dict[str, Any] | None = None
        self.has_head = False
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Row]:
        """The rows that these bytes complete."""
        whole, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._rest += chunk
            return []
        lines = (self._rest + whole).split(b"\n")
        self._rest = rest
        if not self.has_head:
            self._read_head(lines.pop(0))
        if lines and lines[-1].startswith(b"{"):
            self.finished = decode_json(lines.pop())
        if not lines:
            return []
        return make_rows(decode_json(b"[" + b",".join(lines) + b"]"), self.columns, self.types)

    def close(self) -> None:
        """Called at the end of the bytes. Raises an error unless the stream was complete and successful."""
        if self.finished is None:
            raise StreamBroken("The stream ended early, without its closing line.")
        if not self.finished["success"]:
            raise service_error(self.finished, status=200, request_id=self.finished.get("request_id"))

    def _read_head(self, line: bytes) -> None:
        head = decode_json(line)
        self.has_head = True
        self.columns, self.types = tuple(head["columns"]), tuple(head["types"])
        self.request_id = head["request_id"]


class _Rows:
    """Base of both iterators: a response that is still being read, and the rows not yet taken."""

    def __init__(self, response: Response) -> None:
        assert response.source is not None
        self._source: Source = response.source
        self._lines = RowLines()
        self._rows: deque[Row] = deque()
        self.read_only = response.read_only

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names."""
        return self._lines.columns

    @property
    def types(self) -> tuple[str, ...]:
        """The columns' PostgreSQL types."""
        return self._lines.types

    @property
    def request_id(self) -> str:
        """The request id. Give it to the operator when you report a problem."""
        return self._lines.request_id

    @property
    def truncated(self) -> bool:
        """Whether `max_rows` truncated the result. Known at the end of the stream."""
        return bool(self._lines.finished and self._lines.finished.get("truncated"))

    @property
    def affected_rows(self) -> int:
        """How many rows the statement changed. Known at the end of the stream."""
        return int((self._lines.finished or {}).get("affected_rows", 0))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """PostgreSQL's notices and warnings. Known at the end of the stream."""
        return notices_in(self._lines.finished or {})

    async def _read_head(self) -> None:
        while not self._lines.has_head and await self._read():
            pass

    async def _read(self) -> bool:
        """Reads one chunk; False at the end."""
        chunk = await _next_chunk(self._source)
        if not chunk:
            self._lines.close()
            return False
        self._rows.extend(self._lines.feed(chunk))
        return True

    def close(self) -> None:
        """Closes the stream. If the statement is still running, the service cancels it."""
        self._source.close()


class Stream(_Rows, Iterator[Row]):
    """A result that is read as PostgreSQL produces it. Iterate over it once.

    `columns` and `types` are known from the start. If you leave the `with` block or call `close()` before the end, the
    service cancels the statement. Raises StreamBroken if the connection breaks, and the service's error if the
    statement fails midway; the rows received before that are valid, but incomplete.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        finish(self._read_head())

    def __next__(self) -> Row:
        while not self._rows:
            if not finish(self._read()):
                raise StopIteration
        return self._rows.popleft()

    def batches(self) -> Iterator[list[Row]]:
        """Yields the rows in lists, as they arrive. No list is empty."""
        while bool(self._rows) or finish(self._read()):
            if self._rows:
                batch = list(self._rows)
                self._rows.clear()
                yield batch

    def to_arrow(self) -> "pyarrow.Table":
        """Reads the rest of the stream and returns it as an Arrow table, like `Result.to_arrow`."""
        from plainsql.frames import arrow_table  # noqa: PLC0415  # an optional dependency

        return arrow_table(self.columns, self.types, list(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Reads the rest of the stream and returns it as a pandas data frame, like `Result.to_pandas`."""
        from plainsql.frames import pandas_frame  # noqa: PLC0415  # an optional dependency

        return pandas_frame(self.columns, self.types, list(self))

    def to_polars(self) -> "polars.DataFrame":
        """Reads the rest of the stream and returns it as a polars data frame, like `Result.to_polars`."""
        from plainsql.frames import polars_frame  # noqa: PLC0415  # an optional dependency

        return polars_frame(self.columns, self.types, list(self))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(_Rows, AsyncIterator[Row]):
    """A result that is read as PostgreSQL produces it. Iterate once, with `async for`. See `plainsql.Stream`."""

    @classmethod
    async def of(cls, response: Response) -> "AsyncStream":
        """Opens the stream and reads its columns."""
        stream = cls(response)
        await stream._read_head()
        return stream

    async def __anext__(self) -> Row:
        while not self._rows:
            if not await self._read():
                raise StopAsyncIteration
        return self._rows.popleft()

    async def to_arrow(self) -> "pyarrow.Table":
        """Reads the rest of the stream and returns it as an Arrow table, like `Result.to_arrow`."""
        from plainsql.frames import arrow_table  # noqa: PLC0415  # an optional dependency

        return arrow_table(self.columns, self.types, [row async for row in self])

    async def to_pandas(self) -> "pandas.DataFrame":
        """Reads the rest of the stream and returns it as a pandas data frame, like `Result.to_pandas`."""
        from plainsql.frames import pandas_frame  # noqa: PLC0415  # an optional dependency

        return pandas_frame(self.columns, self.types, [row async for row in self])

    async def to_polars(self) -> "polars.DataFrame":
        """Reads the rest of the stream and returns it as a polars data frame, like `Result.to_polars`."""
        from plainsql.frames import polars_frame  # noqa: PLC0415  # an optional dependency

        return polars_frame(self.columns, self.types, [row async for row in self])

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ByteStream(Iterator[bytes]):
    """A stream of raw bytes: whole rows, without the opening and closing lines. Iterate over it once.

    Raises StreamBroken if the connection breaks, and the service's error if the statement fails midway.
    """

    def __init__(self, response: Response, stream_format: StreamFormat) -> None:
        assert response.source is not None
        self._source = response.source
        self._is_csv = stream_format is StreamFormat.CSV
        self._has_head = self._is_csv
        # The last line so far. If the stream ends here, it is the closing line, not a row.
        self._held = b""
        self._is_over = False
        # Known at the end. A CSV stream has none.
        self.notices: tuple[Notice, ...] = ()

    def __next__(self) -> bytes:
        while not self._is_over:
            chunk = finish(_next_chunk(self._source))
            if not chunk:
                self._is_over = True
                self._finish()
                break
            if self._is_csv:
                return chunk
            if rows := self._rows(chunk):
                return rows
        raise StopIteration

    def _rows(self, chunk: bytes) -> bytes:
        """All whole lines except the last one."""
        text = self._held + chunk
        if not self._has_head:
            head, newline, text = text.partition(b"\n")
            if not newline:
                self._held = head
                return b""
            self._has_head = True
        end = text.rfind(b"\n", 0, -1) + 1
        self._held = text[end:]
        return text[:end]

    def _finish(self) -> None:
        if self._is_csv:
            # A CSV stream that fails lacks its last chunk, and reading it has already raised an error.
            return
        try:
            end = decode_json(self._held)
        except ValueError as error:
            raise StreamBroken("The stream ended early, without its closing line.") from error
        if not end["success"]:
            raise service_error(end, status=200, request_id=end.get("request_id"))
        self.notices = notices_in(end)

    def close(self) -> None:
        """Closes the stream. If the statement is still running, the service cancels it."""
        self._source.close()

    def __enter__(self) -> "ByteStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _next_chunk(source: Source) -> bytes:
    """The next chunk of a body. Raises StreamBroken if the connection breaks."""
    try:
        return await source.read()
    except Lost as error:
        raise StreamBroken(f"The stream ended early: {error}") from error
