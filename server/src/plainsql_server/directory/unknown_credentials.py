"""What credentials that nobody knows may cost: few look-ups at once, and none for what was refused a moment ago.

Anybody can make secrets that are well formed, and each of them has to be looked up. Owns the bound, so that those who
are known always find a connection to the directory. Refuses to know what is looked up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.errors import LimitError
from plainsql_server.directory.freshness import Freshness

# Half of the connections that a data-plane process has to the directory. A look-up takes about a millisecond, so that
# this is 2,000 fresh callers a second.
_AT_ONCE = 2
# As many as have their turn within the patience below.
_MAX_WAITING = 2_000
_PATIENCE_S = 2.0
# Digests of 32 bytes: some megabytes each at the most.
_MAX_REFUSED = 10_000
_MAX_KNOWN = 100_000


class UnknownCredentials:
    """Tells those who were found good once from those who never were, and has the latter take turns."""

    def __init__(self, freshness: Freshness, at_once: int = _AT_ONCE, max_waiting: int = _MAX_WAITING) -> None:
        self._freshness = freshness
        self._turns = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._known: set[bytes] = set()
        # When the directory was asked, of those that it did not know.
        self._refused: dict[bytes, float] = {}
        # Whatever changes may make one good: they are few and cheap to ask for again.
        freshness.on_change(lambda _: self._refused.clear())

    def is_known(self, digest: bytes) -> bool:
        """Whether it was found good once; it may have been revoked since."""
        return digest in self._known

    def is_refused(self, digest: bytes) -> bool:
        """Whether the directory did not know it a moment ago."""
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
    async def turn(self) -> AsyncIterator[None]:
        """The right to one look-up, for the length of the block. Raises LimitError where it does not come in time."""
        if self._waiting >= self._max_waiting:
            raise _too_many()
        self._waiting += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._turns.acquire()
        except TimeoutError:
            raise _too_many() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()


def _too_many() -> LimitError:
    return LimitError(
        "overloaded",
        "Too many credentials that were not seen before are being looked up.",
        retryable=True,
        retry_after_ms=1_000,
    )
