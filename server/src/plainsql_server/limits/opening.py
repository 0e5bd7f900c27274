"""Opens the rate limiter, and runs the task that talks to Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction

from plainsql_server.core.observation import Observe
from plainsql_server.core.tasks import end
from plainsql_server.limits.permits import MINUTE, Permits
from plainsql_server.limits.window import Window


@asynccontextmanager
async def open_permits(
    observe: Observe, url: str | None, share: Fraction, window: Window = MINUTE
) -> AsyncIterator[Permits]:
    """Permits, for use inside the block; from the Redis at `url`, if one is configured."""
    permits = Permits(observe, share, window)
    if url is None:
        yield permits
        return
    tried = asyncio.Event()
    keeping = asyncio.create_task(permits.keep_in_touch(url, tried))
    # Try to connect before the first request. If Redis is unavailable, don't wait for it.
    await tried.wait()
    try:
        yield permits
    finally:
        await end(keeping)
