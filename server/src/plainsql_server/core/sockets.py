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
    timer = asyncio.get_running_loop().call_later(limit_s, _cut, descriptor)
    try:
        yield
    finally:
        timer.cancel()


def _cut(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
