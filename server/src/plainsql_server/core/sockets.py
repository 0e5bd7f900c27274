"""Sockets of connections that a driver owns: waits for one, and shuts down one whose server does not respond in time.

    await wait_for_socket(pgconn.socket, write=False)
    with cut_if_silent(connection.fileno(), limit_s):
        await connection.execute(…)

If a query were cancelled instead of cut, the driver would wait for the server's response, which may never come. After a
shutdown, the pending operation fails at once.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

# The wait is counted in steps, and a step counts no more than this, however long it took: if this process stalled, the
# answer has already arrived and only needs to be read.
_STEP_S = 0.05


async def wait_for_socket(descriptor: int, *, write: bool) -> None:
    """Waits until the socket is readable or writable."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, on_ready)
    try:
        await ready
    finally:
        remove(descriptor)


@contextmanager
def cut_if_silent(descriptor: int, limit_s: float) -> Iterator[None]:
    """Shuts down the socket behind the descriptor if the block takes longer than `limit_s`."""
    countdown = _Countdown(descriptor, limit_s)
    try:
        yield
    finally:
        countdown.end()


class _Countdown:
    """Waits in steps until it shuts down a socket."""

    def __init__(self, descriptor: int, limit_s: float) -> None:
        self._descriptor = descriptor
        self._left_s = limit_s
        self._wait()

    def _wait(self) -> None:
        step_s = min(_STEP_S, self._left_s)
        self._left_s -= step_s
        self._timer = asyncio.get_running_loop().call_later(step_s, self._step)

    def _step(self) -> None:
        if self._left_s > 0:
            self._wait()
        else:
            _cut(self._descriptor)

    def end(self) -> None:
        self._timer.cancel()


def _cut(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
