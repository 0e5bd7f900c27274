"""Shuts down the socket of a connection whose server does not respond in time.

    with cut_if_silent(connection.fileno(), limit_s):
        await connection.execute(…)

If a query were cancelled instead, the driver would wait for the server's response, which may never come. After a
shutdown, the pending operation fails at once.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


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
