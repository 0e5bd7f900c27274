"""The memory of requests whose key has not been accepted yet, over all connections of this process.

    unauthenticated.hold(connection, len(data))    # as data arrives
    unauthenticated.release(connection)            # the key is accepted, or the request is answered

What one connection may send has limits of its own; this is the limit of their sum. A key is in a header, so the bytes
of the head count, and of the body those that are read before the key is looked at: a body up to 64 KiB is read first, a
longer one only for a caller with a key.

Where there are too many bytes, the address that holds the most closes connections, those first whose request began to
arrive first. A client's request arrives within milliseconds, and one that is sent to hold memory stays. To read on more
slowly would be no defence: clients with a key would wait for those that never finish.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from plainsql_server.core.clock import now
from plainsql_server.core.errors import RETRY_AFTER_MS, LimitError
from plainsql_server.core.observation import FailureObserved, Observe, UnauthenticatedLoad

# If there are too many bytes, so much of the limit is left. All connections are looked at, which should happen rarely.
_LEFT_SHARE = 0.75
_LOOK_EVERY_S = 1.0
_REPORT_EVERY_S = 60.0


class Holder(Protocol):
    """The part of a connection that this module uses."""

    address: str
    # When its request began to arrive. None if it is complete.
    awaiting_since_s: float | None
    # What this module counts for it.
    held_bytes: int

    def make_way(self, error: LimitError) -> None:
        """Closes the connection, with this answer if none is under way."""


class Unauthenticated:
    """The bytes that the connections of this process hold for requests without an accepted key."""

    def __init__(self, limit_bytes: int, connections: Iterable[Holder]) -> None:
        """`connections` are those that are open, now and later."""
        self._limit_bytes = limit_bytes
        self._connections = connections
        self._held_bytes = 0
        self._closed = 0

    def load(self) -> UnauthenticatedLoad:
        """The state for the metrics."""
        return UnauthenticatedLoad(self._held_bytes, self._closed)

    def hold(self, connection: Holder, size_bytes: int) -> bool:
        """Counts what a connection has sent. Returns whether that may be used: False if the connection made way."""
        connection.held_bytes += size_bytes
        self._held_bytes += size_bytes
        if self._held_bytes <= self._limit_bytes:
            return True
        self._make_way()
        return connection.held_bytes > 0

    def release(self, connection: Holder) -> None:
        """Counts nothing of a connection any more."""
        self._held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def _make_way(self) -> None:
        holders = defaultdict[str, list[Holder]](list)
        for connection in self._connections:
            if connection.held_bytes:
                holders[connection.address].append(connection)
        most = [(-sum(each.held_bytes for each in group), address) for address, group in holders.items()]
        heapify(most)
        for group in holders.values():
            group.sort(key=_began_s, reverse=True)
        while self._held_bytes > self._limit_bytes * _LEFT_SHARE and most:
            total, address = most[0]
            oldest = holders[address].pop()
            total += oldest.held_bytes
            self._close(oldest)
            if holders[address]:
                heapreplace(most, (total, address))
            else:
                heappop(most)

    def _close(self, connection: Holder) -> None:
        self._closed += 1
        self.release(connection)
        connection.make_way(
            LimitError(
                "too_many_incomplete_requests",
                "The service holds too much data of requests that are not complete. Nothing was run.",
                retryable=True,
                retry_after_ms=RETRY_AFTER_MS,
            )
        )

    async def report(self, observe: Observe, every_s: float = _REPORT_EVERY_S) -> None:
        """Reports connections that made way, at most once a minute. Never returns."""
        reported = 0
        while True:
            await asyncio.sleep(min(_LOOK_EVERY_S, every_s))
            closed = self._closed - reported
            if closed:
                reported += closed
                text = f"{closed:,} connections made way: requests without an accepted key held too much memory"
                observe(FailureObserved(now(), "failure", "http.unauthenticated", text))
                await asyncio.sleep(every_s)


def _began_s(connection: Holder) -> float:
    # One that waits for its key to be looked up is complete. It makes way last.
    return float("inf") if connection.awaiting_since_s is None else connection.awaiting_since_s
