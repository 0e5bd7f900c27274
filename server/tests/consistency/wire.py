"""A relay that loses connections, and can make the engine less strict than the service asked for.

Owns what passes between two sides: clients and the service over TCP, or the service and PostgreSQL over a socket
in a folder. It runs on a thread of its own. What it holds is small, so that it knows no back-pressure.
"""

import asyncio
import random
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

_SOCKET = ".s.PGSQL.5432"
_START_LIMIT_S = 30
_STARTUP_HEAD_BYTES = 8
# Version 3 of the protocol; other first messages, as the request to cancel, have no settings.
_PROTOCOL = 3
_ASKED_AT_START = b"default_transaction_isolation=serializable"
_ASKED = b" isolation level serializable"
# Asked before the commit, where a statement could have changed the level: it would fail now.
_GUARD = b"set transaction isolation level serializable"

# A port on this machine, or the path of a socket.
Place = int | str


class Weakening:
    """What the service says to PostgreSQL, with SERIALIZABLE replaced by another level.

    The start-up message is given the other level as its default, and a BEGIN loses its own, by spaces of the same
    length, so that the default holds. Messages are taken whole, however they arrive.
    """

    def __init__(self, isolation: str) -> None:
        self._default = b"default_transaction_isolation=" + isolation.replace(" ", "\\ ").encode()
        self._waiting = b""
        self._started = False

    def __call__(self, data: bytes) -> bytes:
        self._waiting += data
        passed = b""
        while message := self._next_message():
            passed += message
        return passed

    def _next_message(self) -> bytes:
        head_bytes = 1 if self._started else 0
        if len(self._waiting) < _STARTUP_HEAD_BYTES - 4 + head_bytes:
            return b""
        end = head_bytes + int(struct.unpack_from(">i", self._waiting, head_bytes)[0])
        if len(self._waiting) < end:
            return b""
        message, self._waiting = self._waiting[:end], self._waiting[end:]
        if not self._started:
            return self._start(message)
        message = message.replace(_GUARD, b"select".ljust(len(_GUARD)))
        return message.replace(_ASKED, b" " * len(_ASKED))

    def _start(self, message: bytes) -> bytes:
        if struct.unpack_from(">h", message, 4)[0] != _PROTOCOL:
            return message
        self._started = True
        rest = message[4:].replace(_ASKED_AT_START, self._default)
        return struct.pack(">i", len(rest) + 4) + rest


class _Side(asyncio.Protocol):
    """One end of a connection that passes through."""

    def __init__(self, change: Callable[[bytes], bytes] | None) -> None:
        self._change = change
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self.early = b""
        # The next that arrives here is lost, and the connection with it.
        self.is_doomed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.is_doomed:
            self.abort()
        elif self.other is None:
            self.early += data
        else:
            self.other.write(self._change(data) if self._change else data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.abort()

    def join(self, other: "_Side") -> None:
        self.other, early, self.early = other, self.early, b""
        if early:
            self.data_received(early)

    def write(self, data: bytes) -> None:
        if self.transport is not None and data:
            self.transport.write(data)

    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Wire:
    """A relay; `with Wire(…) as wire`."""

    def __init__(self, listens_at: Place, leads_to: Place, isolation: str | None = None) -> None:
        self._listens_at = listens_at
        self._leads_to = leads_to
        self._isolation = isolation
        self._pairs: list[tuple[_Side, _Side]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._chance = random.Random(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire")
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self, share: float = 1.0) -> None:
        """Ends this share of the connections: half of them at once, half of them when the next answer is due."""
        self._loop.call_soon_threadsafe(self._cut, share)

    def _cut(self, share: float) -> None:
        self._pairs = [pair for pair in self._pairs if pair[0].is_open()]
        for near, far in self._pairs:
            if self._chance.random() < share:
                if self._chance.random() < 0.5:
                    near.abort()
                else:
                    # What was asked is carried out, and nobody hears of it.
                    far.is_doomed = True

    def _accept(self) -> asyncio.Protocol:
        near = _Side(Weakening(self._isolation) if self._isolation else None)
        task = self._loop.create_task(self._join(near))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return near

    async def _join(self, near: _Side) -> None:
        far = _Side(None)
        try:
            await self._connect(far)
        except OSError:
            # No server listens there at present: the client is disconnected.
            near.abort()
            return
        self._pairs.append((near, far))
        far.join(near)
        near.join(far)
        if not near.is_open():
            far.abort()

    async def _connect(self, far: _Side) -> None:
        if isinstance(self._leads_to, int):
            await self._loop.create_connection(lambda: far, "127.0.0.1", self._leads_to)
        else:
            await self._loop.create_unix_connection(lambda: far, self._leads_to)

    async def _listen(self) -> asyncio.Server:
        if isinstance(self._listens_at, int):
            return await self._loop.create_server(self._accept, "127.0.0.1", self._listens_at)
        return await self._loop.create_unix_server(self._accept, self._listens_at)

    def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for side in (side for pair in self._pairs for side in pair):
            side.abort()
        for task in self._opening:
            task.cancel()
        # Not before the next turn of the loop, in which the connections end.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)


@contextmanager
def wire_to_engine(engine_folder: str, isolation: str | None = None) -> Iterator[tuple[Wire, str]]:
    """A relay before PostgreSQL, and the folder that it listens in."""
    with (
        tempfile.TemporaryDirectory(prefix="plainsql-wire-") as folder,
        Wire(f"{folder}/{_SOCKET}", f"{engine_folder}/{_SOCKET}", isolation) as wire,
    ):
        yield wire, folder


def wire_to_service(port: int) -> Wire:
    """A relay before the service, on a port of its own."""
    return Wire(0, port)
