"""A process and a whole node are killed while clients write: their databases answer elsewhere, and nothing is lost.

Everything over HTTPS, behind a real alias. `make soak PART=moves` kills more often (PLAINSQL_TEST_PROCESS_KILLS).
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from server.tests.consistency.faults import wait_until, workers_of
from server.tests.fleet.https_alias import DatabaseWriter, Site, running_site
from server.tests.load import percentile, size
from server.tests.postgres import Postgres
from server.tests.processes import kill_with_children

pytestmark = [pytest.mark.timing, pytest.mark.full]

_KILLS = size("PLAINSQL_TEST_PROCESS_KILLS", 2)
_DATABASES = 12
# How soon the databases of a process or a node that died are answered elsewhere.
MOVED_WITHIN_S = 1.0
# For how long it is dead: several times as long as nginx leaves it alone after a failure.
_DEAD_FOR_S = 3.0


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    with postgres.swept(), running_site(postgres.fresh_directory(), postgres, tmp_path, _DATABASES) as site:
        yield site


async def gaps_after(writers: Sequence[DatabaseWriter], kill: Callable[[], None]) -> list[float]:
    """The longest time without an acknowledged write of each client since the kill."""
    began_s = time.monotonic()
    await wait_until(lambda: all(each.has_answer_after(began_s) for each in writers))
    died_s = time.monotonic()
    await asyncio.to_thread(kill)
    await wait_until(lambda: all(each.has_answer_after(died_s + _DEAD_FOR_S) for each in writers))
    return [each.longest_gap_s(died_s) for each in writers]


def show(what: str, gaps_s: Sequence[float], writers: Sequence[DatabaseWriter]) -> None:
    words = sum((each.words for each in writers), Counter[str]())
    count = sum(len(each.acknowledged) for each in writers)
    print(
        f"\n{what}: without an acknowledged write p50 {percentile(gaps_s, 50) * 1000:.0f} ms,"
        f" p99 {percentile(gaps_s, 99) * 1000:.0f} ms, longest {max(gaps_s) * 1000:.0f} ms ({len(gaps_s)} clients);"
        f" {count} acknowledged, 0 lost, {dict(words)}"
    )


async def test_databases_of_a_process_that_is_killed_answer_elsewhere_in_time(site: Site) -> None:
    gaps_s: list[float] = []
    with site.node() as node, site.alias():
        async with site.writing() as writers:
            for number in range(_KILLS):

                def kill(number: int = number) -> None:
                    # A stopped parent starts no replacement, so the process stays dead.
                    os.kill(node.process.pid, signal.SIGSTOP)
                    os.kill(workers_of(node)[number % 2], signal.SIGKILL)

                try:
                    gaps_s += await gaps_after(writers, kill)
                finally:
                    os.kill(node.process.pid, signal.SIGCONT)
                await wait_until(lambda: len(workers_of(node)) == 2 and site.ports_of(node) <= site.ports())
    show("a process is killed", gaps_s, writers)
    site.check(writers)
    check_words(writers, _KILLS)
    assert max(gaps_s) < MOVED_WITHIN_S


async def test_databases_of_a_node_that_is_killed_answer_elsewhere_in_time(site: Site) -> None:
    gaps_s: list[float] = []
    with site.node(), site.alias():
        async with site.writing() as writers:
            for _ in range(_KILLS):
                gaps_s += await gaps_after_a_node(site, writers)
    show("a node of two processes is killed", gaps_s, writers)
    site.check(writers)
    check_words(writers, _KILLS)
    assert max(gaps_s) < MOVED_WITHIN_S


async def gaps_after_a_node(site: Site, writers: Sequence[DatabaseWriter]) -> list[float]:
    """One more node joins, gets its part of the requests, and is killed."""
    with contextlib.ExitStack() as stack:
        # In a thread, so that the clients go on.
        second = await asyncio.to_thread(stack.enter_context, site.node())
        await wait_until(lambda: site.ports_of(second) <= site.followed() and bool(second.logged()))
        return await gaps_after(writers, lambda: kill_with_children(second.process.pid))


def check_words(writers: Sequence[DatabaseWriter], kills: int) -> None:
    """Only what was under way in a process that died has no answer: one request of a client for each kill."""
    for each in writers:
        assert sum(each.words.values()) <= kills, each.words
        assert not each.refused
