"""Accepts TLS connections, whose handshakes count from the time that a connection is accepted.

    Accepting(listening, context, make, server_state, handshakes).start(backlog)

uvicorn leaves accepting and the handshake to the event loop, and its protocol, which counts connections, hears of one
only when its handshake is done. Sockets that are opened and stay silent would count nowhere, and live for a minute
each. So `http/server/server.py` accepts TLS connections with this module. Without TLS, uvicorn does. A client that
speaks plain HTTP gets an answer here, within the same limits.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext

from uvicorn.server import ServerState

from plainsql_server.http.server.accepting.addresses import network_of
from plainsql_server.http.server.accepting.client_hello import MAX_BYTES, wanted_bytes
from plainsql_server.http.server.accepting.handshakes import Handshakes
from plainsql_server.http.server.accepting.plain_http import answer, is_http
from plainsql_server.http.server.accepting.shared_reader import SharedReader

# A handshake takes some milliseconds, and as many round trips as a slow network needs.
HANDSHAKE_TIMEOUT_S = 5.0
# What is left of that for the handshake itself, if the client said its first word late.
_SHORTEST_S = 0.1
# What is read of plain HTTP before the connection is closed: at once, and in total.
_DISCARD_BYTES = 64 * 1024
_MAX_DISCARDED_BYTES = 1024 * 1024
# Connections accepted per turn of the event loop, each for some 50 microseconds. Requests wait for them.
_AT_ONCE = 8
# SO_LINGER: on, for 0 seconds.
_NO_LINGERING = struct.pack("ii", 1, 0)
# If no descriptor is left, one may be free after this time.
_RETRY_S = 0.1

Make = Callable[[], asyncio.Protocol]


class Accepting:
    """A socket on which connections are accepted. Workers may share it."""

    def __init__(
        self, listening: socket.socket, context: SSLContext, make: Make, state: ServerState, handshakes: Handshakes
    ) -> None:
        self._socket = listening
        self.context = context
        self.make = make
        self.state = state
        self.handshakes = handshakes
        self.loop = asyncio.get_running_loop()
        self.reader = SharedReader()
        self._retry: asyncio.TimerHandle | None = None

    def start(self, backlog: int) -> None:
        """Listens."""
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self.loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stops accepting connections. Closing it again has no effect."""
        if self._socket.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self.loop.remove_reader(self._socket)
        self._socket.close()
        self.reader.close()

    async def wait_closed(self) -> None:
        """Returns: nothing is left to wait for."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                # Another worker has it, or the client is gone.
                return
            except OSError:
                self._pause()
                return
            accepted.setblocking(False)
            Handshake(accepted, str(address[0]), self).begin()

    def _pause(self) -> None:
        self.handshakes.failed["descriptors"] += 1
        self.loop.remove_reader(self._socket)
        self._retry = self.loop.call_later(_RETRY_S, self.loop.add_reader, self._socket, self._accept)


class Handshake:
    """A connection whose handshake is under way."""

    def __init__(self, accepted: socket.socket, address: str, accepting: Accepting) -> None:
        self.address = network_of(address)
        self.number = accepted.fileno()
        self.ends_s = accepting.loop.time() + HANDSHAKE_TIMEOUT_S
        self._socket = accepted
        self._accepting = accepting
        self._has_ended = False
        # Runs the handshake itself.
        self._task: asyncio.Task[None] | None = None
        # Whether the event loop owns the socket.
        self._is_loops = False
        # Whether the client spoke plain HTTP and has its answer.
        self._is_answered = False
        self._left_to_discard = _MAX_DISCARDED_BYTES
        self._awaited_bytes = 1

    def begin(self) -> None:
        """Waits for the client, then starts the handshake. After it, the event loop calls `connection_made`."""
        # Those that uvicorn shuts down when it stops.
        self._accepting.state.connections.add(self)  # type: ignore[arg-type]
        self._accepting.handshakes.begin(self)
        if self._has_ended:
            return
        try:
            self._accepting.reader.add(self)
        except OSError:
            # The kernel watches no more descriptors.
            self._fail("descriptors")

    def shutdown(self) -> None:
        """Closes the connection, unless its handshake is done."""
        if self._task is None:
            self._reset()
            self._end()
        elif not self._has_ended:
            self._task.cancel()

    def on_readable(self) -> None:
        """Looks at what the client says first. If that is nothing, or half of it, it costs a socket and no more."""
        if self._is_answered:
            self._discard()
            return
        try:
            beginning = self._socket.recv(MAX_BYTES, socket.MSG_PEEK)
            if beginning and not is_http(beginning) and self._must_wait(beginning):
                return
        except BlockingIOError:
            return
        except OSError:
            beginning = b""
        if not beginning:
            self._fail("refused")
        elif is_http(beginning):
            self._answer_http()
        else:
            self._accepting.reader.remove(self)
            self._task = self._accepting.loop.create_task(self._run())
            # Called for a task that is cancelled before it runs, too.
            self._task.add_done_callback(self._end)

    def on_timeout(self) -> None:
        """Closes the connection. One that was answered has been counted."""
        if self._is_answered:
            self._end()
        else:
            self._fail("timeout")

    def _must_wait(self, beginning: bytes) -> bool:
        """Whether the client's first message is incomplete. If so, the kernel says when more of it is there.

        Raises ConnectionError if this is no TLS.
        """
        awaited_bytes = wanted_bytes(beginning) or 1
        if awaited_bytes == self._awaited_bytes:
            # There is something to read although this is not all: the end, or the kernel is short of memory. TLS sees.
            awaited_bytes = 1
        if awaited_bytes != self._awaited_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited_bytes)
        self._awaited_bytes = awaited_bytes
        return awaited_bytes > 1

    def _answer_http(self) -> None:
        self._is_answered = True
        self._accepting.handshakes.failed["plain_http"] += 1
        # It stays open: if it were closed before the client has sent everything, the kernel would reset it, and discard
        # the answer.
        with suppress(OSError):
            self._socket.send(answer(self._accepting.state.default_headers))
            self._socket.shutdown(socket.SHUT_WR)

    def _discard(self) -> None:
        try:
            size_bytes = len(self._socket.recv(_DISCARD_BYTES))
        except BlockingIOError:
            return
        except OSError:
            size_bytes = 0
        self._left_to_discard -= size_bytes
        if not size_bytes or self._left_to_discard < 0:
            self._end()

    def _fail(self, reason: str) -> None:
        self._accepting.handshakes.failed[reason] += 1
        self._reset()
        self._end()

    def _reset(self) -> None:
        """Makes closing the socket free all of it. Else the kernel would keep it for up to a minute."""
        if not self._has_ended and not self._is_answered:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)

    def _end(self, _: object = None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._accepting.reader.remove(self)
        if not self._is_loops:
            self._socket.close()
        self._accepting.handshakes.end(self)
        self._accepting.state.connections.discard(self)

    async def _run(self) -> None:
        self._is_loops = True
        loop, failed = self._accepting.loop, self._accepting.handshakes.failed
        left_s = max(_SHORTEST_S, self.ends_s - loop.time())
        try:
            await loop.connect_accepted_socket(
                self._first_protocol, self._socket, ssl=self._accepting.context, ssl_handshake_timeout=left_s
            )
        except OSError:
            failed["timeout" if loop.time() >= self.ends_s else "refused"] += 1

    def _first_protocol(self) -> "_FirstProtocol":
        return _FirstProtocol(self._accepting.make, self._end)


class _FirstProtocol(asyncio.Protocol):
    """The protocol of a connection until its handshake is done: ends the handshake, and makes the actual protocol.

    The task of the handshake ends some time later. A connection that has been made must not make way in between.
    """

    def __init__(self, make: Make, on_made: Callable[[], None]) -> None:
        self._make = make
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._on_made()
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
