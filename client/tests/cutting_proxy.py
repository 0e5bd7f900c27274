"""A proxy between the client and the service that cuts connections at random.

Owns the cutting: before a request is passed on, after it was passed on, or within the answer. It does not look into
what it passes, so it serves plain HTTP. Whether to cut is decided by a seeded generator.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Literal

Cut = Literal["before send", "after send", "within the answer"]
_CUTS: tuple[Cut, ...] = ("before send", "after send", "within the answer")


class CuttingProxy:
    """Listens on a free port of the loopback; `share` of the requests are cut."""

    def __init__(self, target_port: int, share: float, seed: int) -> None:
        self.cuts: Counter[str] = Counter()
        self.port = 0
        self._target_port = target_port
        self._share = share
        self._random = random.Random(seed)

    async def serve(self, ready: threading.Event, end: asyncio.Event) -> None:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await end.wait()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
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
        """One request, which the client sends whole and then waits; False where the connection ends."""
        request = await reader.read(1 << 20)
        if not request:
            return False
        cut = self._random.choice(_CUTS) if self._random.random() < self._share else None
        if cut is not None:
            self.cuts[cut] += 1
        if cut == "before send":
            return False
        far_writer.write(request)
        await far_writer.drain()
        if cut == "after send":
            return False
        answer = await far_reader.read(1 << 20)
        writer.write(answer[: len(answer) // 2] if cut else answer)
        await writer.drain()
        return cut is None and bool(answer)


@contextlib.contextmanager
def cutting_proxy(target_port: int, *, share: float, seed: int) -> Iterator[CuttingProxy]:
    """The proxy, in a thread of its own for the length of the block."""
    proxy = CuttingProxy(target_port, share, seed)
    ready, end = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await proxy.serve(ready, end)

    # Whatever is under way at the end is cancelled with its loop.
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield proxy
    finally:
        loops[0].call_soon_threadsafe(end.set)
        thread.join(10)
