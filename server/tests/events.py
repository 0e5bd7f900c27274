"""Reading streams in tests: a parser of events written from the standard, and a client that sees every piece.

Owns when each piece arrived, and whether the stream's end came. The client speaks HTTP straight over a socket,
so that it can stop to read, or go away, at any moment.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

# No piece may take longer than this, or a test would hang instead of failing.
CHUNK_LIMIT_S = 30.0

_END_OF_LINE = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Event:
    """One event, as the standard dispatches it."""

    type: str
    data: str
    at_s: float = 0.0

    @property
    def content(self) -> Any:
        return json.loads(self.data)


class EventParser:
    """The algorithm of 'Interpreting an event stream' in the HTML standard, step by step."""

    def __init__(self) -> None:
        self._text = ""
        self._bytes = b""
        self._at_start = True
        self._type = ""
        self._data = ""
        self.comments: list[str] = []

    def feed(self, chunk: bytes, at_s: float = 0.0) -> list[Event]:
        """The events that are complete with this piece."""
        # A character may be cut in two; what is not a character at all must fail the test.
        self._bytes += chunk
        try:
            text, self._bytes = self._bytes.decode(), b""
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                raise
            text, self._bytes = self._bytes[: error.start].decode(), self._bytes[error.start :]
        if self._at_start and text:
            text = text.removeprefix("\ufeff")
            self._at_start = False
        text = self._text + text
        events, start = [], 0
        for end in _END_OF_LINE.finditer(text):
            if end[0] == "\r" and end.end() == len(text):
                # A line feed may follow.
                break
            if (event := self._line(text[start : end.start()], at_s)) is not None:
                events.append(event)
            start = end.end()
        self._text = text[start:]
        return events

    def _line(self, line: str, at_s: float) -> Event | None:
        if not line:
            return self._dispatch(at_s)
        if line.startswith(":"):
            self.comments.append(line[1:])
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data += value + "\n"
        return None

    def _dispatch(self, at_s: float) -> Event | None:
        kind, data = self._type, self._data
        self._type = self._data = ""
        return Event(kind or "message", data.removesuffix("\n"), at_s) if data else None


class BrokenOff(Exception):
    """The connection ended before the response did."""


class StreamClient:
    """One connection and one streamed request: `async with StreamClient(…) as client`."""

    def __init__(self, port: int, key: str, *, receive_bytes: int | None = None) -> None:
        self._port = port
        self._key = key
        self._receive_bytes = receive_bytes
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sent_s = 0.0
        self.parser = EventParser()

    async def __aenter__(self) -> Self:
        limit = {} if self._receive_bytes is None else {"limit": self._receive_bytes}
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, **limit)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.drop()
        # The loop closes the socket at its next turn, if there is one.
        await asyncio.sleep(0)

    async def send(self, sql: str, *, accept: str = "text/event-stream", **fields: Any) -> None:
        """Sends the request and does not wait."""
        assert self._writer is not None
        body = json.dumps({"sql": sql, **fields}).encode()
        head = (
            f"POST /v1/query HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {self._key}\r\naccept: {accept}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.sent_s = time.monotonic()
        self._writer.write(head.encode() + body)

    async def read_head(self) -> None:
        assert self._reader is not None
        try:
            async with asyncio.timeout(CHUNK_LIMIT_S):
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BrokenOff from error
        self.status = int(head[0].split(" ")[1])
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of the body. Raises BrokenOff where the last one is missing."""
        assert self._reader is not None
        while True:
            try:
                async with asyncio.timeout(CHUNK_LIMIT_S):
                    size = int(await self._reader.readuntil(b"\r\n"), 16)
                    chunk = await self._reader.readexactly(size + 2)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise BrokenOff from error
            if size == 0:
                return
            yield chunk[:-2]

    async def events(self) -> AsyncIterator[Event]:
        """The events, as they come."""
        async for chunk in self.chunks():
            for event in self.parser.feed(chunk, time.monotonic()):
                yield event

    async def json_body(self) -> Any:
        """The body of an answer that is no stream."""
        assert self._reader is not None
        async with asyncio.timeout(CHUNK_LIMIT_S):
            return json.loads(await self._reader.readexactly(int(self.headers["content-length"])))

    async def last_event(self) -> Event | None:
        """The last event of a stream that is read to its end, or to where it broke off: then None."""
        last: Event | None = None
        try:
            async for event in self.events():
                assert last is None or last.type not in ("done", "error"), "an event after the end"
                last = event
        except BrokenOff:
            return None
        return last

    def drop(self) -> None:
        """Goes away at once."""
        if self._writer is not None:
            self._writer.transport.abort()
