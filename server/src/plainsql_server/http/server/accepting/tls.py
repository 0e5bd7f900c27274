"""Accepts TLS connections, whose handshakes count from the time that a connection is accepted.

    Accepting(listening, context, make, server_state, handshakes).start(backlog)

uvicorn leaves accepting and the handshake to the event loop, and its protocol, which counts connections, hears of one
only when its handshake is done. Sockets that are opened and stay silent would count nowhere, and live for a minute
each. So `http/server/server.py` accepts TLS connections with this module. Without TLS, uvicorn does. A client that
speaks plain HTTP gets an answer here, within the same limits.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext

from uvicorn.server import ServerState

from plainsql_server.http.server.accepting.addresses import network_of
from plainsql_server.http.server.accepting.handshakes import Handshakes
from plainsql_server.http.server.accepting.plain_http import answer, is_http

# A handshake takes some milliseconds, and as many round trips as a slow network needs.
HANDSHAKE_TIMEOUT_S = 5.0
# What is left of that for the handshake itself, if the client said its first word late.
_SHORTEST_S = 0.1
# A record of TLS begins with its type, a version and its length.
_RECORD_HEAD_BYTES = 5
_HANDSHAKE_RECORD = 22
_MAX_RECORD_BYTES = _RECORD_HEAD_BYTES + 16 * 1024
# What is read of plain HTTP before the connection is closed: at once, and in total.
_DISCARD_BYTES = 64 * 1024
_MAX_DISCARDED_BYTES = 1024 * 1024
# Connections accepted per wake-up.
_AT_ONCE = 16
# If no descriptor is left, one may be free after this time.
_RETRY_S = 0.1

Make = Callable[[], asyncio.Protocol]


class Accepting:
    """A socket on which connections are accepted. Workers may share it."""

    def __init__(
        self, listening: socket.socket, context: SSLContext, make: Make, state: ServerState, handshakes: Handshakes
    ) -> None:
        self._socket = listening
        self._context = context
        self._make = make
        self._state = state
        self._handshakes = handshakes
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None

    def start(self, backlog: int) -> None:
        """Listens."""
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stops accepting connections. Closing it again has no effect."""
        if self._socket.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

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
            Handshake(accepted, str(address[0]), self._handshakes, self._state).begin(self._context, self._make)

    def _pause(self) -> None:
        self._handshakes.failed["descriptors"] += 1
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(_RETRY_S, self._loop.add_reader, self._socket, self._accept)


class Handshake:
    """A connection whose handshake is under way."""

    def __init__(self, accepted: socket.socket, address: str, handshakes: Handshakes, state: ServerState) -> None:
        self.address = network_of(address)
        self._socket = accepted
        self._handshakes = handshakes
        # Those that uvicorn shuts down when it stops.
        self._connections = state.connections
        self._server_headers = state.default_headers
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + HANDSHAKE_TIMEOUT_S
        self._timer = self._loop.call_at(self._ends_s, self._fail, "timeout")
        self._has_ended = False
        # Runs the handshake itself.
        self._task: asyncio.Task[None] | None = None
        # Whether the event loop owns the socket.
        self._is_loops = False
        self._left_to_discard = _MAX_DISCARDED_BYTES
        self._awaited_bytes = 1

    def begin(self, context: SSLContext, make: Make) -> None:
        """Waits for the client, then starts the handshake. After it, the event loop calls `connection_made`."""
        self._connections.add(self)  # type: ignore[arg-type]
        self._handshakes.begin(self)
        if not self._has_ended:
            self._loop.add_reader(self._socket, self._look, context, make)

    def shutdown(self) -> None:
        """Closes the connection."""
        if self._task is None:
            self._end()
        else:
            self._task.cancel()

    def _look(self, context: SSLContext, make: Make) -> None:
        """Looks at what the client says first. If that is nothing, or half a record, it costs a socket and no more."""
        try:
            beginning = self._socket.recv(_RECORD_HEAD_BYTES, socket.MSG_PEEK)
            if beginning and not is_http(beginning) and self._must_wait(beginning):
                return
        except BlockingIOError:
            return
        except OSError:
            beginning = b""
        self._loop.remove_reader(self._socket)
        if not beginning:
            self._fail("refused")
        elif is_http(beginning):
            self._answer_http()
        else:
            self._timer.cancel()
            self._task = self._loop.create_task(self._run(context, make))
            # Called for a task that is cancelled before it runs, too.
            self._task.add_done_callback(self._end)

    def _must_wait(self, beginning: bytes) -> bool:
        """Whether the client's first record is incomplete. If so, the kernel says when it is complete.

        Raises ConnectionError if this is no TLS.
        """
        if beginning[0] != _HANDSHAKE_RECORD:
            raise ConnectionAbortedError
        wanted_bytes = _RECORD_HEAD_BYTES
        if len(beginning) == _RECORD_HEAD_BYTES:
            wanted_bytes += int.from_bytes(beginning[3:])
        if wanted_bytes > _MAX_RECORD_BYTES or len(self._socket.recv(wanted_bytes, socket.MSG_PEEK)) >= wanted_bytes:
            wanted_bytes = 1
        elif wanted_bytes == self._awaited_bytes:
            # There is something to read although this is not all: the end, or the kernel is short of memory. TLS sees.
            wanted_bytes = 1
        self._awaited_bytes = wanted_bytes
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)
        return wanted_bytes > 1

    def _answer_http(self) -> None:
        self._handshakes.failed["plain_http"] += 1
        with suppress(OSError):
            self._socket.send(answer(self._server_headers))
            self._socket.shutdown(socket.SHUT_WR)
        # If it were closed before the client has sent everything, the kernel would reset it, and discard the answer.
        self._loop.add_reader(self._socket, self._discard)

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
        self._handshakes.failed[reason] += 1
        self._end()

    def _end(self, _: object = None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._timer.cancel()
        if self._task is None:
            self._loop.remove_reader(self._socket)
        if not self._is_loops:
            self._socket.close()
        self._handshakes.end(self)
        self._connections.discard(self)

    async def _run(self, context: SSLContext, make: Make) -> None:
        self._is_loops = True
        left_s = max(_SHORTEST_S, self._ends_s - self._loop.time())
        try:
            await self._loop.connect_accepted_socket(make, self._socket, ssl=context, ssl_handshake_timeout=left_s)
        except OSError:
            is_late = self._loop.time() >= self._ends_s
            self._handshakes.failed["timeout" if is_late else "refused"] += 1
