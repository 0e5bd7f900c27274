"""Limits on client connections: how many a process accepts, how long each may take to send a request, and how much they
may send together before their keys are accepted.

This module watches connections that are idle or still sending a request. Requests that are being answered are watched
in `http/server/protocol.py` and `http/server/sink.py`.
"""

import asyncio
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from plainsql_server.core.errors import RETRY_AFTER_MS, LimitError, RequestError, ServiceError
from plainsql_server.http.server.accepting.handshakes import MAX_HANDSHAKES, Handshakes
from plainsql_server.http.server.accepting.unauthenticated import Holder, Unauthenticated

_LOOK_EVERY_S = 1.0
# File descriptors that a process needs besides client connections: for the 2,000 connections that a cell has at most,
# the directory and files; and for handshakes.
_OTHER_DESCRIPTORS = 2_560 + MAX_HANDSHAKES
# Where a process may have few connections, it may have this share of them in handshakes.
_HANDSHAKES_SHARE = 4


class Waiting(Holder, Protocol):
    """The part of a connection that this module uses.

    `awaiting_since_s` is when the awaited request started to arrive, or when the wait for it started.
    """

    has_begun: bool

    @property
    def is_answering(self) -> bool:
        """Whether an earlier request is still being answered."""

    def refuse(self, error: ServiceError) -> None:
        """Sends an error and closes the connection."""

    def hang_up(self) -> None:
        """Closes the connection without an answer."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits. A `per_address` of 0 means no limit per address."""

    total: int
    per_address: int
    request_s: float
    """How long the head of a request, and a small body, may take to arrive."""
    idle_s: float
    """How long a connection may stay open before its first request."""
    unauthenticated_bytes: int = 64 * 1024 * 1024
    """How much all connections together may have sent of requests whose key is not accepted yet."""


class Connections:
    """The client connections of this process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        # Connections still in their TLS handshake.
        self.handshakes = Handshakes(limits.per_address, min(MAX_HANDSHAKES, limits.total // _HANDSHAKES_SHARE + 1))
        self._open: set[Waiting] = set()
        self._by_address: Counter[str] = Counter()
        self.unauthenticated = Unauthenticated(limits.unauthenticated_bytes, self._open)

    def admit(self, connection: Waiting) -> None:
        """Registers a new connection, or refuses it."""
        self._open.add(connection)
        self._by_address[connection.address] += 1
        if len(self._open) > self.limits.total:
            connection.refuse(_too_many("The service has reached its connection limit."))
        elif 0 < self.limits.per_address < self._by_address[connection.address]:
            message = f"Too many connections from your address: the limit is {self.limits.per_address} per process."
            connection.refuse(_too_many(message))

    def release(self, connection: Waiting) -> None:
        """Unregisters a closed connection."""
        self._open.discard(connection)
        self.unauthenticated.release(connection)
        self._by_address[connection.address] -= 1
        if self._by_address[connection.address] <= 0:
            del self._by_address[connection.address]

    async def watch(self) -> None:
        """Closes connections that exceed a time limit. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self._look(loop.time())

    def _look(self, now_s: float) -> None:
        for connection in list(self._open):
            since_s = connection.awaiting_since_s
            if since_s is None or connection.is_answering:
                continue
            if connection.has_begun and now_s - since_s > self.limits.request_s:
                connection.refuse(RequestError("request_timeout", "The request did not arrive in time."))
            elif not connection.has_begun and now_s - since_s > self.limits.idle_s:
                connection.hang_up()


def allow_descriptors(wanted_connections: int) -> int:
    """Raises this process's limit of open files as far as allowed. Returns how many connections that permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_connections + _OTHER_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # Where few are allowed, cells get no more than half of them.
    return max(1, min(wanted_connections, soft - min(_OTHER_DESCRIPTORS, soft // 2)))


def _too_many(message: str) -> LimitError:
    return LimitError("connection_limit", message, retryable=True, retry_after_ms=RETRY_AFTER_MS)
