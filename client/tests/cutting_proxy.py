"""A proxy between the client and the service that cuts connections, at random or at every byte of a commit.

Owns the cutting. A cut is a place in an exchange: after so many bytes of the request and then of the answer. The proxy
looks at little of what it passes. It serves plain HTTP: `with running(CuttingProxy(port, share=0.3, seed=9)) as proxy`
"""

import asyncio
import contextlib
import random
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from typing import TypeVar

# Every answer has more bytes.
_ANSWER_BYTES_MIN = 150
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_KEY = re.compile(rb"\r\nidempotency-key: *(\S+)\r\n", re.IGNORECASE)


class Proxy:
    """Listens on a free port of the loopback. Counts the `cuts` by where they are."""

    def __init__(self, target_port: int, *, loses_answers: bool = False) -> None:
        """With `loses_answers`, a connection that is cut after its request ends when the answer has come."""
        self.cuts: Counter[str] = Counter()
        self.port = 0
        self._target_port = target_port
        self._loses_answers = loses_answers

    async def serve(self, ready: threading.Event, end: asyncio.Event) -> None:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await end.wait()

    def place_of_cut(self, request: bytes) -> int | None:
        """After how many bytes of the request and its answer the connection ends, if it does."""
        raise NotImplementedError

    def passed(self, request: bytes, answer: bytes) -> None:
        """Called with each exchange that was not cut within its request."""

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._pass_all(reader, writer)
        finally:
            writer.transport.abort()

    async def _pass_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            while await self._pass_one(reader, writer, far_reader, far_writer):
                pass
        finally:
            far_writer.transport.abort()

    async def _pass_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False where the connection ends."""
        request = await _read_message(reader)
        place = self.place_of_cut(request)
        far_writer.write(request[:place])
        await far_writer.drain()
        if place is not None and place <= len(request):
            if place == len(request) and self._loses_answers:
                await _read_message(far_reader)
            self.cuts[_name_of(place, len(request))] += 1
            return False
        answer = await _read_message(far_reader)
        self.passed(request, answer)
        writer.write(answer if place is None else answer[: place - len(request)])
        await writer.drain()
        if place is not None:
            self.cuts["within the answer"] += 1
        return place is None


def _name_of(place: int, request_bytes: int) -> str:
    if place == request_bytes:
        return "after send"
    return "within the request" if place else "before send"


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


class CuttingProxy(Proxy):
    """Cuts a `share` of the requests: before they are passed on, after it, or within the answer."""

    def __init__(self, target_port: int, share: float, seed: int) -> None:
        super().__init__(target_port)
        self._share = share
        self._random = random.Random(seed)

    def place_of_cut(self, request: bytes) -> int | None:
        if self._random.random() >= self._share:
            return None
        within = len(request) + self._random.randint(1, _ANSWER_BYTES_MIN)
        return self._random.choice((0, len(request), within))


class CommitCutter(Proxy):
    """Cuts the first attempt of each commit, at one of `places` after the other. Only commits have a key.

    None is the place right after the request, when the service is about to work on it. With `is_relentless`, every
    attempt is cut there; with `loses_answers`, too, after its commit.
    """

    def __init__(self, target_port: int, *, is_relentless: bool = False, loses_answers: bool = False) -> None:
        super().__init__(target_port, loses_answers=loses_answers)
        self.places: deque[int | None] = deque()
        # The length of the last commit that was passed on, and of its answer.
        self.lengths = (0, 0)
        self._is_relentless = is_relentless
        self._seen: set[bytes] = set()

    def place_of_cut(self, request: bytes) -> int | None:
        key = _KEY.search(request)
        if key is not None and self._is_relentless:
            return len(request)
        if key is None or key[1] in self._seen or not self.places:
            return None
        self._seen.add(key[1])
        place = self.places.popleft()
        return len(request) if place is None else place

    def passed(self, request: bytes, answer: bytes) -> None:
        if _KEY.search(request):
            self.lengths = (len(request), len(answer))


P = TypeVar("P", bound=Proxy)


@contextlib.contextmanager
def running(proxy: P) -> Iterator[P]:
    """The proxy, in a thread of its own for the length of the block."""
    ready, end = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await proxy.serve(ready, end)

    # Whatever is under way at the end is cancelled with its loop.
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield proxy
    finally:
        loops[0].call_soon_threadsafe(end.set)
        thread.join(30)
