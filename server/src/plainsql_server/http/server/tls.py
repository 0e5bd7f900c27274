"""Accepts TLS connections, whose handshakes count from the time that a connection is accepted.

    Accepting(listening, context, make, server_state, handshakes).start(backlog)

uvicorn leaves accepting and the handshake to the event loop, and its protocol, which counts connections, hears of one
only when its handshake is done. Sockets that are opened and stay silent would count nowhere, and live for a minute
each. So `http/server/server.py` accepts TLS connections with this module. Without TLS, uvicorn does.
"""

import asyncio
import socket
from collections.abc import Callable
from ssl import SSLContext

from uvicorn.server import ServerState

from plainsql_server.http.server.handshakes import Handshakes

# A handshake takes some milliseconds, and as many round trips as a slow network needs.
HANDSHAKE_TIMEOUT_S = 5.0
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
        self.address = address
        self._socket = accepted
        self._handshakes = handshakes
        # Those that uvicorn shuts down when it stops.
        self._connections = state.connections
        self._has_begun = False

    def begin(self, context: SSLContext, make: Make) -> None:
        """Starts the handshake. After it, the event loop calls the protocol's `connection_made`."""
        self._connections.add(self)  # type: ignore[arg-type]
        self._task = asyncio.get_running_loop().create_task(self._run(context, make))
        # Called for a task that is cancelled before it runs, too.
        self._task.add_done_callback(self._end)
        self._handshakes.begin(self)

    def shutdown(self) -> None:
        """Closes the connection."""
        self._task.cancel()

    def _end(self, _: asyncio.Task[None]) -> None:
        if not self._has_begun:
            # Later it belongs to the event loop.
            self._socket.close()
        self._handshakes.end(self)
        self._connections.discard(self)

    async def _run(self, context: SSLContext, make: Make) -> None:
        self._has_begun = True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await loop.connect_accepted_socket(
                make, self._socket, ssl=context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except OSError:
            is_late = loop.time() - began_s >= HANDSHAKE_TIMEOUT_S
            self._handshakes.failed["timeout" if is_late else "refused"] += 1
