"""Clients' connections of one process: how many there may be, and how long one may keep us waiting for a request.

Owns the caps and the watch over connections on which a request is awaited or has begun to come. Refuses to judge a
request; and what is being answered is watched elsewhere (`http/server/protocol.py`, `http/server/sink.py`).
"""

import asyncio
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from plainsql_server.core.errors import LimitError, RequestError, ServiceError

_LOOK_EVERY_S = 1.0
# Descriptors that a process needs besides its clients' connections: the engine's, the directory's, files.
_OTHER_DESCRIPTORS = 512
_RETRY_AFTER_MS = 1_000


class Waiting(Protocol):
    """A connection, as much as matters here."""

    address: str
    # When the awaited request began to come, or the wait for it began; None while none is awaited.
    awaiting_since_s: float | None
    has_begun: bool

    @property
    def is_answering(self) -> bool:
        """Whether what came before is still being answered."""

    def refuse(self, error: ServiceError) -> None:
        """Answers with an error and closes."""

    def hang_up(self) -> None:
        """Closes without a word."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What is allowed. `per_address` of 0 means that there is no such cap."""

    total: int
    per_address: int
    request_s: float
    """How long a request's head, and a small body, may take to come."""
    idle_s: float
    """How long a connection may be open without a request."""


class Connections:
    """The connections of a process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: set[Waiting] = set()
        self._by_address: Counter[str] = Counter()

    def admit(self, connection: Waiting) -> None:
        """Takes note of a new connection, or refuses it."""
        self._open.add(connection)
        self._by_address[connection.address] += 1
        if len(self._open) > self.limits.total:
            connection.refuse(_too_many("The service has as many connections as it can serve."))
        elif 0 < self.limits.per_address < self._by_address[connection.address]:
            connection.refuse(_too_many(f"An address may have {self.limits.per_address} connections to a process."))

    def release(self, connection: Waiting) -> None:
        """Takes note of a connection's end."""
        self._open.discard(connection)
        self._by_address[connection.address] -= 1
        if self._by_address[connection.address] <= 0:
            del self._by_address[connection.address]

    async def watch(self) -> None:
        """Closes what keeps us waiting for too long; works for ever."""
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
                connection.refuse(RequestError("request_timeout", "The request did not come in time."))
            elif not connection.has_begun and now_s - since_s > self.limits.idle_s:
                connection.hang_up()


def allow_descriptors(wanted_connections: int) -> int:
    """Raises this process' own limit of open files as far as it may; how many connections there can be then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_connections + _OTHER_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted_connections, soft - _OTHER_DESCRIPTORS))


def _too_many(message: str) -> LimitError:
    return LimitError("connection_limit", message, retryable=True, retry_after_ms=_RETRY_AFTER_MS)
