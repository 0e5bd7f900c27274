"""Watches accepted connections until their clients have said enough, or their time is over.

    shared_reader.add(handshake)            # handshake.on_readable() or handshake.on_timeout() is called
    shared_reader.remove(handshake)         # before its socket is closed

All of them are in one epoll set behind one reader of the event loop, and have one timer: a reader and a timer of the
event loop for each would be half of what a silent connection costs. In one turn of the event loop, some are looked at,
and the others in the next turns, so that thousands that end at the same time hold no request up.
"""

import asyncio
import select
from itertools import islice
from typing import Protocol

# Connections looked at per turn of the event loop. Each takes some 10 microseconds.
_AT_ONCE = 16
# The clock of the event loop counts milliseconds.
_CLOCK_S = 0.001


class WatchedConnection(Protocol):
    """A connection that waits for its client."""

    number: int
    """Its file descriptor."""
    ends_s: float
    """When its time is over. All connections have the same time, so those that were added first end first."""

    def on_readable(self) -> None:
        """There is something to read, or the connection has ended. Called again until all is read."""

    def on_timeout(self) -> None:
        """Its time is over. It must remove itself."""


class SharedReader:
    """Connections that wait for their clients."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._watched: dict[int, WatchedConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def add(self, connection: WatchedConnection) -> None:
        """Watches a connection."""
        self._epoll.register(connection.number, select.EPOLLIN)
        self._watched[connection.number] = connection
        if self._timer is None:
            self._timer = self._loop.call_at(connection.ends_s, self._end_late)

    def remove(self, connection: WatchedConnection) -> None:
        """Watches a connection no longer, if it was watched."""
        if self._watched.get(connection.number) is connection:
            del self._watched[connection.number]
            self._epoll.unregister(connection.number)
            self._close_if_done()

    def close(self) -> None:
        """Frees everything once the last connection is removed. No more are added."""
        self._is_closing = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_closing and not self._watched and not self._epoll.closed:
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _look(self) -> None:
        for number, _ in self._epoll.poll(0, _AT_ONCE):
            self._watched[number].on_readable()

    def _end_late(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        try:
            for connection in list(islice(self._watched.values(), _AT_ONCE)):
                if connection.ends_s > now_s:
                    break
                connection.on_timeout()
        finally:
            self._wait_for_first(now_s)

    def _wait_for_first(self, now_s: float) -> None:
        if self._watched:
            first_s = next(iter(self._watched.values())).ends_s
            self._timer = self._loop.call_at(max(first_s, now_s + _CLOCK_S), self._end_late)
