"""Limits the cost of unknown credentials: few concurrent lookups, and none for one that was just rejected.

Anyone can generate well-formed secrets, and each one must be looked up. With this limit, callers with known credentials
always get a connection to the directory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.errors import RETRY_AFTER_MS, LimitError
from plainsql_server.directory.freshness import Freshness

# Half of a data-plane process's connections to the directory. A lookup takes about a millisecond, so this allows 2,000
# new callers per second.
_AT_ONCE = 2
# As many as can be served within the timeout below.
_MAX_WAITING = 2_000
_LOOKUP_TIMEOUT_S = 2.0
# Digests have 32 bytes, so each set takes some megabytes at most.
_MAX_REFUSED = 10_000
_MAX_KNOWN = 100_000


class UnknownCredentials:
    """Knows which credentials were valid once, and queues the lookups of all others."""

    def __init__(self, freshness: Freshness, at_once: int = _AT_ONCE, max_waiting: int = _MAX_WAITING) -> None:
        self._freshness = freshness
        self._slots = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._known: set[bytes] = set()
        # The time of the lookup, for credentials that the directory did not know.
        self._refused: dict[bytes, float] = {}
        # Any change could make one of them valid. They are few and cheap to look up again, so forget them all.
        freshness.on_change(lambda _: self._refused.clear())

    def is_known(self, digest: bytes) -> bool:
        """Whether it was valid once. It may have been revoked since."""
        return digest in self._known

    def is_refused(self, digest: bytes) -> bool:
        """Whether a recent lookup found that the directory does not know it."""
        asked_s = self._refused.get(digest)
        return asked_s is not None and self._freshness.holds(asked_s)

    def note_known(self, digest: bytes) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(digest)

    def note_refused(self, digest: bytes, asked_s: float) -> None:
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused[digest] = asked_s

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A slot for one lookup, for the length of the block. Raises LimitError if none becomes free in time."""
        if self._waiting >= self._max_waiting:
            raise _too_many()
        self._waiting += 1
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                await self._slots.acquire()
        except TimeoutError:
            raise _too_many() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()


def _too_many() -> LimitError:
    return LimitError(
        "overloaded",
        "Too many new credentials are being checked at the moment.",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
    )
