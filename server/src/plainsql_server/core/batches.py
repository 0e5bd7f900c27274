"""Long work in batches, between which other requests run.

    async for batch in in_batches(statements, lambda statement: 1 + len(statement.params)):
        …

The costs are up to the caller. Work of cost 1 should take about five microseconds, so that a batch takes about a
millisecond, unless a single item costs more.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from plainsql_server.core.loop_share import share_loop

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
            await share_loop()
            batch, spent = [], 0
        batch.append(item)
        spent += cost(item)
    if batch:
        yield batch
