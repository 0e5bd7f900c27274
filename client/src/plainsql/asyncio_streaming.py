"""The asyncio iterator over a stream's rows; `streaming.py` has what they share."""

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType

from plainsql.errors import StreamBroken
from plainsql.result import Row
from plainsql.streaming import RowLines
from plainsql.wire import Lost, Response


class AsyncStream(AsyncIterator[Row]):
    """A result that is read while it is made: `async for` over it, once. See `plainsql.Stream`."""

    def __init__(self, response: Response) -> None:
        assert response.source is not None
        self._source = response.source
        self._rows: deque[Row] = deque()
        self.lines = RowLines()

    @classmethod
    async def of(cls, response: Response) -> "AsyncStream":
        """The stream, with its columns known."""
        stream = cls(response)
        while not stream.lines.columns and stream.lines.finished is None and await stream._read():
            pass
        return stream

    @property
    def columns(self) -> tuple[str, ...]:
        return self.lines.columns

    @property
    def types(self) -> tuple[str, ...]:
        return self.lines.types

    async def __anext__(self) -> Row:
        while not self._rows:
            if not await self._read():
                raise StopAsyncIteration
        return self._rows.popleft()

    async def _read(self) -> bool:
        piece = await self._piece()
        if not piece:
            self.lines.close()
            return False
        self._rows.extend(self.lines.feed(piece))
        return True

    async def _piece(self) -> bytes:
        try:
            return bytes(await self._source.read())
        except Lost as error:
            raise StreamBroken(f"The stream broke off: {error}") from error

    def close(self) -> None:
        """Ends the stream; the service cancels the statement if it still runs."""
        self._source.close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
