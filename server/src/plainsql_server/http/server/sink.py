"""A response that leaves in pieces, over the connection that its request came by.

Owns the framing (chunked, or until the connection closes for HTTP/1.0), how much may wait for a client that
reads slowly, and for how long it may not read at all. Refuses to know what it sends.
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
# What may wait in the kernel for a client that reads slowly. Without it, that is some megabytes a connection, which
# the engine would have to make and we to render for a client that perhaps never reads them.
_UNSENT_BYTES = 128 * 1024
# Linger for no time at all.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ClientStalled(Exception):
    """The client did not read for so long that its connection was closed."""


class Cycle(Protocol):
    """A request that is being answered, as uvicorn knows it."""

    keep_alive: bool
    response_complete: bool


class Channel(Protocol):
    """A client's connection: uvicorn's protocol."""

    transport: asyncio.Transport
    flow: FlowControl
    server_state: Any

    def on_response_complete(self) -> None:
        """Goes on with the next request."""


Way = tuple[Channel, Cycle, bool]
"""Where an answer goes: the connection, the request's cycle on it, and whether it may be chunked."""


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection so that its client sees an error and no end; what has not left is thrown away."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class Sink:
    """The body of one response. What is written leaves at once, unless the client is behind."""

    def __init__(self, way: Way, stall_s: float) -> None:
        self._channel, self._cycle, self._chunked = way
        self._transport = self._channel.transport
        self._flow = self._channel.flow
        self._stall_s = stall_s
        self._head = b""
        self.sent_bytes = 0

    @property
    def is_behind(self) -> bool:
        """Whether the client has not read what was sent before."""
        return self._flow.write_paused

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Keeps the head for the first write, which it shares."""
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        lines = [STATUS_LINE[status]]
        for name, value in (*self._channel.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self._cycle.keep_alive else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)
        # uvicorn answers by itself what nobody else has begun to answer.
        if hasattr(self._cycle, "response_started"):
            self._cycle.response_started = True

    def write(self, data: bytes) -> None:
        """Sends without waiting; `drain` must follow before there is much more."""
        self.sent_bytes += len(data)
        if not data:
            # An empty chunk would be the end.
            self._transport.write(self._head)
        elif self._chunked:
            self._transport.write(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))
        else:
            self._transport.write(self._head + data)
        self._head = b""

    async def drain(self) -> None:
        """Waits while the client is behind. Raises ClientStalled, having closed the connection."""
        if not self._flow.write_paused:
            return
        try:
            async with asyncio.timeout(self._stall_s):
                await self._flow.drain()
        except TimeoutError:
            self.abort()
            raise ClientStalled from None

    def finish(self, last: bytes) -> None:
        """Sends the last piece and the end, and goes on with the connection's next request."""
        self.write(last)
        if self._chunked:
            self._transport.write(_LAST_CHUNK)
        self._cycle.response_complete = True
        if not self._cycle.keep_alive:
            self._transport.close()
            # Closing waits for a client that does not read; we do not wait as long.
            asyncio.get_running_loop().call_later(self._stall_s, self._transport.abort)
        self._channel.on_response_complete()

    def abort(self) -> None:
        """Breaks the response off, so that the client sees that its end is missing."""
        self._cycle.response_complete = True
        self._transport.abort()

    def break_off(self) -> None:
        """Like `abort`, but what was written before still leaves, where a missing last chunk shows the break.

        Elsewhere a closed connection is how a whole body ends, so that this one is reset.
        """
        self._cycle.response_complete = True
        if not self._chunked:
            reset(self._transport)
            return
        self._transport.close()
        asyncio.get_running_loop().call_later(self._stall_s, self._transport.abort)
