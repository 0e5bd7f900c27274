"""Opens the rate limiter, and runs the task that talks to the shared ledger: Redis, or the directory without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction

from plainsql_server.core.observation import Observe
from plainsql_server.core.share import Share
from plainsql_server.core.tasks import end
from plainsql_server.limits.ledger import LedgerKind, LedgerSource, PermitLedger
from plainsql_server.limits.permits import MINUTE, Permits
from plainsql_server.limits.window import Window

_ALL = Fraction(1)
# How long a process that starts waits for the ledger. It may have to connect, and to ask twice.
_FIRST_LIMIT_S = 3.0
# A process that stops does not wait longer to return what it leased. The rest counts until its window is over.
_RETURN_LIMIT_S = 1.0


def from_redis(url: str) -> LedgerSource:
    """The Redis at `url` as the ledger."""

    @asynccontextmanager
    async def opened(window: Window) -> AsyncIterator[PermitLedger]:
        # Loaded here because it takes a fifth of the start of a process, and not every service has a Redis.
        from plainsql_server.limits.shared import SharedLedger  # noqa: PLC0415  # imports redis, which few need

        async with SharedLedger.open(url, window) as shared:
            yield shared

    return LedgerSource(LedgerKind.REDIS, opened)


@asynccontextmanager
async def open_permits(
    observe: Observe, source: LedgerSource, share: Share, part: Fraction = _ALL, window: Window = MINUTE
) -> AsyncIterator[Permits]:
    """Permits of the ledger, for use inside the block.

    `part` is that of the plane, whose processes divide it by `share` while the ledger is unavailable.
    """
    permits = Permits(observe, share, part, window)
    tried = asyncio.Event()
    keeping = asyncio.create_task(permits.keep_in_touch(source, tried))
    try:
        # Try to connect before the first request. If the ledger is unavailable, don't wait for it.
        await asyncio.wait([waiting := asyncio.create_task(tried.wait())], timeout=_FIRST_LIMIT_S)
        if not tried.is_set():
            permits.go_by_shares(f"no answer in the first {_FIRST_LIMIT_S:.0f} s")
        await end(waiting)
        yield permits
        permits.stop()
        await asyncio.wait([keeping], timeout=_RETURN_LIMIT_S)
    finally:
        await end(keeping)
