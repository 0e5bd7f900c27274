"""Long work in batches, between which other requests run.

    async for batch in in_batches(statements, lambda statement: 1 + len(statement.params)):
        …

The costs are up to the caller. Work of cost 1 should take about five microseconds, so that a batch takes about a
millisecond, unless a single item costs more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_BATCH = 200


async def in_batches(
    items: Iterable[_Item], cost: Callable[[_Item], int], limit: int = _BATCH
) -> AsyncIterator[list[_Item]]:
    """The items in batches, each of which ends when its cost reaches the limit. Other tasks run between them."""
    batch, spent = list[_Item](), 0
    for item in items:
        if spent >= limit:
            yield batch
            await asyncio.sleep(0)
            batch, spent = [], 0
        batch.append(item)
        spent += cost(item)
    if batch:
        yield batch
