"""Parts of long work: one in each iteration of the loop, everybody in order, and nobody waits for a cancelled task."""

import asyncio
from collections import Counter

import pytest

from plainsql_server.core.loop_share import LoopShare, share_loop

pytestmark = pytest.mark.unit


async def parts(name: str, count: int, done: list[str]) -> None:
    for _ in range(count):
        await share_loop()
        done.append(name)


async def test_at_most_one_part_runs_in_an_iteration() -> None:
    done: list[str] = []
    tasks = [asyncio.create_task(parts(str(number), 20, done)) for number in range(10)]
    most, before = 0, 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        most, before = max(most, len(done) - before), len(done)
    assert most == 1
    assert Counter(done) == {str(number): 20 for number in range(10)}


async def test_tasks_do_their_parts_in_the_order_in_which_they_ask() -> None:
    done: list[str] = []
    await asyncio.gather(*(parts(name, 5, done) for name in "abc"))
    assert done == list("abc" * 5)


async def test_a_task_that_comes_later_does_not_wait_for_all_parts_of_the_others() -> None:
    done: list[str] = []
    long = asyncio.create_task(parts("long", 1_000, done))
    await parts("first", 10, done)
    await parts("short", 1, done)
    assert len(done) < 30
    long.cancel()


async def test_a_cancelled_task_leaves_nothing_and_delays_nobody() -> None:
    done: list[str] = []
    share = LoopShare(asyncio.get_running_loop())
    waiting = [asyncio.create_task(share.wait()) for _ in range(50)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await share.wait()
    assert len(share) == 0
    cancelled = asyncio.create_task(parts("cancelled", 5, done))
    await asyncio.sleep(0)
    cancelled.cancel()
    await parts("other", 3, done)
    assert done == ["other"] * 3


async def test_a_task_that_is_cancelled_when_it_may_run_does_not_stop_the_others() -> None:
    share, done = LoopShare(asyncio.get_running_loop()), list[int]()

    async def wait(number: int) -> None:
        await share.wait()
        done.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    # The first one's future is done now or in the next iteration, before the task runs.
    asyncio.get_running_loop().call_soon(tasks[0].cancel)
    await asyncio.wait(tasks, timeout=30)
    assert done == [1, 2]


def test_each_loop_has_its_own() -> None:
    for _ in range(3):
        done: list[str] = []
        asyncio.run(parts("a", 2, done))
        assert done == ["a", "a"]
