"""Long work in batches, between which other requests run.

async for batch in in_batches(statements):
    …
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
# What is done with one item takes some microseconds, so a batch takes about a millisecond.
_SIZE = 200


async def in_batches(items: Sequence[_Item], size: int = _SIZE) -> AsyncIterator[Sequence[_Item]]:
    """The items in batches. Other tasks run between them."""
    yield items[:size]
    for start in range(size, len(items), size):
        await asyncio.sleep(0)
        yield items[start : start + size]
