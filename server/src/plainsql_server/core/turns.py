"""Long work in parts, between which other requests run.

async for part in in_turns(statements):
    …
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
# What is done with one item takes some microseconds, so a part takes about a millisecond.
PART = 200


async def in_turns(items: Sequence[_Item], part: int = PART) -> AsyncIterator[Sequence[_Item]]:
    """The items in parts. Other tasks run between them."""
    yield items[:part]
    for start in range(part, len(items), part):
        await asyncio.sleep(0)
        yield items[start : start + part]
