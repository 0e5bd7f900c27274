"""Giving up a connection whose other end says nothing.

Owns the cutting. To cancel a question would have a driver wait for the server's last word, which may never come; a
connection that was cut fails at once, for whoever waits on it. Refuses to know who is silent, and what follows.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cut_if_silent(descriptor: int, limit_s: float) -> Iterator[None]:
    """Cuts the connection of that descriptor if the block takes longer."""
    timer = asyncio.get_running_loop().call_later(limit_s, _cut, descriptor)
    try:
        yield
    finally:
        timer.cancel()


def _cut(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
