"""Writes a streamed response to the connection of its request.

    sink.begin(200, headers)
    sink.write(data)
    await sink.drain()
    sink.finish(b"")

It handles the framing (chunked, or until the connection closes for HTTP/1.0), how much data may wait for a slow client,
and how long a client may stop reading.
"""

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from plainsql_server.http.server.responses import Header

_LAST_CHUNK = b"0\r\n\r\n"
# How much may wait in the kernel for a slow client. By default, that is several megabytes per connection, which
# PostgreSQL would produce and we would encode for a client that may never read them.
_UNSENT_BYTES = 128 * 1024
# SO_LINGER with a timeout of zero: closing resets the connection.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ClientStalled(Exception):
    """The connection was closed because the client stopped reading."""


class Cycle(Protocol):
    """A request that is being answered, as uvicorn represents it."""

    keep_alive: bool
    response_complete: bool


class HttpConnection(Protocol):
    """The connection of a client: uvicorn's protocol."""

    transport: asyncio.Transport
    flow: FlowControl
    server_state: Any

    def on_response_complete(self) -> None:
        """Continues with the next request."""


ResponseChannel = tuple[HttpConnection, Cycle, bool]
"""The response channel: the connection, the cycle of the request, and whether the answer may be chunked."""


def reset(transport: asyncio.Transport) -> None:
    """Resets a connection, so the client sees an error rather than a normal end. Unsent data is discarded."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class Sink:
    """The body of one response. Data is sent at once, unless the client is behind."""

    def __init__(self, channel: ResponseChannel, stall_s: float) -> None:
        self._channel, self._cycle, self._chunked = channel
        self._transport = self._channel.transport
        self._flow = self._channel.flow
        self._stall_s = stall_s
        self._head = b""
        self.sent_bytes = 0

    @property
    def is_behind(self) -> bool:
        """Whether the client has yet to read earlier data."""
        return self._flow.write_paused

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Sets the head, which is sent together with the first write."""
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        lines = [STATUS_LINE[status]]
        for name, value in (*self._channel.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self._cycle.keep_alive else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)
        # Otherwise uvicorn would send its own answer.
        if hasattr(self._cycle, "response_started"):
            self._cycle.response_started = True

    def write(self, data: bytes) -> None:
        """Sends data without waiting. Call `drain` before you write much more."""
        self.sent_bytes += len(data)
        if not data:
            # An empty chunk would end the body.
            self._transport.write(self._head)
        elif self._chunked:
            self._transport.write(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))
        else:
            self._transport.write(self._head + data)
        self._head = b""

    async def drain(self) -> None:
        """Waits while the client is behind. If it stalls, closes the connection and raises ClientStalled."""
        if not self._flow.write_paused:
            return
        try:
            async with asyncio.timeout(self._stall_s):
                await self._flow.drain()
        except TimeoutError:
            self.abort()
            raise ClientStalled from None

    def finish(self, last: bytes) -> None:
        """Sends the last data, ends the body, and continues with the connection's next request."""
        self.write(last)
        if self._chunked:
            self._transport.write(_LAST_CHUNK)
        self._cycle.response_complete = True
        if not self._cycle.keep_alive:
            self._transport.close()
            # Closing waits until the client has read everything. Limit that wait.
            asyncio.get_running_loop().call_later(self._stall_s, self._transport.abort)
        self._channel.on_response_complete()

    def abort(self) -> None:
        """Aborts the response. The client sees that it is incomplete."""
        self._cycle.response_complete = True
        self._transport.abort()

    def break_off(self) -> None:
        """Like `abort`, but still sends earlier data if the body is chunked: the missing last chunk shows the failure.

        Without chunks, closing the connection would mark the body as complete, so the connection is reset instead.
        """
        self._cycle.response_complete = True
        if not self._chunked:
            reset(self._transport)
            return
        self._transport.close()
        asyncio.get_running_loop().call_later(self._stall_s, self._transport.abort)
