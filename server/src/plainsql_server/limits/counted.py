"""The shared ledger in the directory, for services without Redis.

`directory/sharing/permits.py` asks the directory; this module makes a ledger of it, as `shared.py` does of Redis.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from plainsql_server.core.errors import ServiceError
from plainsql_server.limits.ledger import Ask, Granted, LedgerKind, LedgerSource, PermitLedger, SharedLedgerLost
from plainsql_server.limits.window import Window

# How often an unused connection is checked.
_PING_EVERY_S = 5.0
_NOT_WARMING_MS = -1


class PermitCounter(Protocol):
    """What counts in the directory: `directory/sharing/permits.py`."""

    async def grant(self, asks: Sequence[Ask]) -> list[tuple[int, int, int, int]]: ...

    async def ping(self) -> None: ...


class CountedLedger:
    """A connection to the directory."""

    # A directory keeps its data, so it never warms up.
    run_id = "directory"

    def __init__(self, counter: PermitCounter) -> None:
        self._counter = counter
        self._asked_s = time.monotonic()

    async def begin_warming(self) -> None:
        """Never called, because `run_id` stays."""

    async def settle(self, asks: Sequence[Ask]) -> list[Granted]:
        if not asks:
            if time.monotonic() >= self._asked_s + _PING_EVERY_S:
                self._asked_s = time.monotonic()
                await self._counter.ping()
            return []
        self._asked_s = time.monotonic()
        return [Granted(*answer, _NOT_WARMING_MS) for answer in await self._counter.grant(asks)]


def from_directory(open_counter: Callable[[], AbstractAsyncContextManager[PermitCounter]]) -> LedgerSource:
    """The directory as the ledger. Its window is that of `grant_permits`, a minute."""

    @asynccontextmanager
    async def opened(_: Window) -> AsyncIterator[PermitLedger]:
        try:
            async with open_counter() as counter:
                yield CountedLedger(counter)
        except ServiceError as error:
            raise SharedLedgerLost(error.internal_context or error.message) from error

    return LedgerSource(LedgerKind.DIRECTORY, opened)
