"""Permits for as long as a process lives, and the task that speaks to Redis for them.

Owns that task's beginning and end. Apart from `permits.py` because mypyc compiles that, and no async generators.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction

from plainsql_server.core.observation import Observe
from plainsql_server.limits.permits import MINUTE, Permits
from plainsql_server.limits.window import Window


@asynccontextmanager
async def open_permits(
    observe: Observe, url: str | None, share: Fraction, window: Window = MINUTE
) -> AsyncIterator[Permits]:
    """Permits for the length of the block, from the Redis at `url` if there is one."""
    permits = Permits(observe, share, window)
    if url is None:
        yield permits
        return
    tried = asyncio.Event()
    keeping = asyncio.create_task(permits.keep_in_touch(url, tried))
    # The first requests shall find Redis; if it is away, they are not kept waiting.
    await tried.wait()
    try:
        yield permits
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
