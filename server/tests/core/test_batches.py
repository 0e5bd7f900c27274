"""Long work in parts: everything is there, in order, and others run in between."""

import asyncio

import pytest

from plainsql_server.core.batches import in_batches

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
async def test_all_items_come_in_order(count: int) -> None:
    parts = [part async for part in in_batches(range(count), 5)]
    assert [each for part in parts for each in part] == list(range(count))
    assert all(len(part) == 5 for part in parts[:-1])


async def test_others_run_between_the_parts() -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    seen = [rounds async for _ in in_batches(range(12), 5)]
    counting.cancel()
    assert seen == [0, 1, 2]
