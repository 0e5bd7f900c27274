"""Long work in batches: everything is there, in order, and others run in between."""

import asyncio

import pytest

from plainsql_server.core.batches import in_batches

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
async def test_all_items_come_in_order(count: int) -> None:
    batches = [batch async for batch in in_batches(range(count), lambda _: 1, 5)]
    assert [each for batch in batches for each in batch] == list(range(count))
    assert all(len(batch) == 5 for batch in batches[:-1])


async def test_expensive_items_make_small_batches() -> None:
    batches = [batch async for batch in in_batches([1, 1, 9, 1, 7, 1, 1], lambda cost: cost, 5)]
    assert batches == [[1, 1, 9], [1, 7], [1, 1]]


async def test_others_run_between_the_batches() -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    seen = [rounds async for _ in in_batches(range(12), lambda _: 1, 5)]
    counting.cancel()
    assert seen[0] == 0 < seen[1] < seen[2]
