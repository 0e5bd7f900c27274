"""A uvicorn server that can be replaced by another process, and that lets clients read their last answers.

    server = Server(config)
    server.run(sockets)        # the first socket is shared with other processes
    server.retire()            # from a signal handler or another thread: a successor is ready

uvicorn ends a process as soon as its last request has finished, so a client that is still reading a long answer would
lose the rest of it. It also raises the signal that stopped it once more, which would end the process before its
children. This server does neither.
"""

import array
import asyncio
import ctypes
import fcntl
import logging
import signal
import socket
import ssl
import struct
import termios
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from plainsql_server.http.server.accepting.handshakes import Handshakes
from plainsql_server.http.server.accepting.tls import Accepting
from plainsql_server.http.server.protocol import FastPathProtocol
from plainsql_server.http.server.readiness import Readiness

# How long after its successor is ready a process may still get connections on its own port, from clients that had begun
# to connect. If it listened for much longer, there could be a third socket on the port: see `_prefer_newest`.
_LAST_CONNECTIONS_S = 1.0
# From the cancellation of the last requests until their answers are written.
_CANCELLED_S = 1.0
# How long clients may take to read the rest of their answers, and how long one may stop reading.
_LAST_BYTES_S = 30.0
_NO_PROGRESS_S = 5.0
_LOOK_EVERY_S = 0.1
_DATE_EVERY_S = 1.0
# Linux's number; Python has no name for it.
_SO_ATTACH_REUSEPORT_CBPF = 51
# A program of one instruction: return 1. Of the sockets of a port, number 1 gets the connection.
_SECOND_SOCKET = struct.pack("HBBI", 0x06, 0, 0, 1)

_log = logging.getLogger("uvicorn.error")


class Server(uvicorn.Server):
    """uvicorn's server, with its own way to accept TLS connections and to stop."""

    # Called in the handler of a signal that stops it.
    on_exit: Callable[[], None] | None = None
    # The signals that stopped it.
    stop_signals: tuple[int, ...] = ()
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        context = self.config.ssl
        if context is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self._accept(context, sockets or [])
        # The first one is shared. All processes accept from one queue there.
        for own in (sockets or [])[1:]:
            _prefer_newest(own)

    def _accept(self, context: ssl.SSLContext, sockets: Sequence[socket.socket]) -> None:
        make = partial(  # type: ignore[call-arg]  # of uvicorn's protocols
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        handshakes: Handshakes = self.config.loaded_app.connections.handshakes
        accepting = [Accepting(each, context, make, self.server_state, handshakes) for each in sockets]
        for each in accepting:
            each.start(self.config.backlog)
        # uvicorn stops them.
        self.servers.extend(accepting)  # type: ignore[arg-type]

    async def main_loop(self) -> None:
        """Wakes up once a second, for the date. uvicorn does so ten times, which an idle machine notices."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_EVERY_S):
                    await self._leaving.wait()

    def retire(self) -> None:
        """Stops without losing a request: another process listens on the same ports."""
        if self._loop is None or not self.started or self.should_exit:
            self.should_exit = True
            return
        try:
            self._loop.call_soon_threadsafe(self._retire)
        except RuntimeError:
            # It has just stopped for another reason, and the event loop is closed.
            assert self._loop.is_closed()

    def _retire(self) -> None:
        if self._readiness.draining:
            return
        self._readiness.replace()
        # At once, so that the successor has all new connections.
        self.servers[0].close()
        loop = asyncio.get_running_loop()
        for own in self.servers[1:]:
            loop.call_later(_LAST_CONNECTIONS_S, own.close)
        loop.call_later(self._readiness.replaced_drain_s, self._leave)

    def _leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    @property
    def _readiness(self) -> Readiness:
        readiness: Readiness = self.config.loaded_app.readiness
        return readiness

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals():
            yield
            self.stop_signals, self._captured_signals = tuple(self._captured_signals), []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
        if self.on_exit is not None:
            self.on_exit()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._send_last_bytes()

    async def _wait_tasks_to_complete(self) -> None:
        """Waits for the last requests. Raises TimeoutError if some have to be cancelled, which uvicorn does."""
        began_s, was_replaced = asyncio.get_running_loop().time(), self._readiness.is_replaced
        changed_s, unsent = began_s, self._unsent()
        while self.server_state.connections or self.server_state.tasks:
            if was_replaced and not self._readiness.is_replaced:
                # Now its successor stops, too.
                began_s, was_replaced = asyncio.get_running_loop().time(), False
                self._shut_down_connections()
            now_s = asyncio.get_running_loop().time()
            if (after := self._unsent()) != unsent:
                changed_s, unsent = now_s, after
            waited_s, limit_s = now_s - began_s, self._readiness.last_answers_after_s + _CANCELLED_S
            if unsent and now_s < changed_s + _NO_PROGRESS_S:
                # Clients read long answers, which are sent as they are read.
                limit_s += _LAST_BYTES_S
            if waited_s > limit_s:
                break
            if not self.server_state.tasks and waited_s > _CANCELLED_S and not self._unread():
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        if self.server_state.tasks:
            raise TimeoutError

    def _shut_down_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def _send_last_bytes(self) -> None:
        """Waits for clients that are still reading."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _LAST_BYTES_S
        changed_s, before = loop.time(), self._unread()
        while before and loop.time() < end_s and loop.time() < changed_s + _NO_PROGRESS_S and not self.force_exit:
            await asyncio.sleep(_LOOK_EVERY_S)
            if (after := self._unread()) != before:
                changed_s, before = loop.time(), after

    def _unsent(self) -> dict[object, int]:
        """How many bytes of long answers are not written yet, by connection."""
        connections = [each for each in self.server_state.connections if isinstance(each, FastPathProtocol)]
        return {each: each.unsent_bytes for each in connections if each.unsent_bytes}

    def _unread(self) -> dict[object, int]:
        """How many bytes each client has yet to read, of those that have some."""
        # The others are in their handshakes.
        connections = [each for each in self.server_state.connections if isinstance(each, HttpToolsProtocol)]
        unread = {each: _unread_bytes(each.transport) for each in connections}
        return {each: count for each, count in unread.items() if count}


def _unread_bytes(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return 0
    # What the kernel has, and the client has not confirmed.
    queued = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]


def stop_again(numbers: tuple[int, ...]) -> None:
    """Raises the signals that stopped a server, so that the process ends as its parent expects."""
    for number in numbers:
        signal.raise_signal(number)


def _prefer_newest(listening: socket.socket) -> None:
    """Where two sockets listen on the port, gives all connections to the newer one.

    Call it when the socket listens. The kernel would divide them, and reset those that the older one has not accepted
    when it closes. A single socket has number 0; then the kernel ignores the program's answer.
    """
    program = ctypes.create_string_buffer(_SECOND_SOCKET)
    described = struct.pack("HL", 1, ctypes.addressof(program))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, described)
    except OSError as error:
        _log.warning("A reload may reset connections to port %d: %s", listening.getsockname()[1], error.strerror)
