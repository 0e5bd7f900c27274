"""Waiting for an organization's spanning lock: waiters are notified, and poll rarely."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from plainsql_server.core.clock import Deadline
from plainsql_server.core.observation import Observation
from plainsql_server.core.tasks import end
from plainsql_server.data_plane import spanning_lock
from plainsql_server.data_plane.spanning_lock import SpanningLocks
from plainsql_server.directory import spanning
from plainsql_server.directory.channel import Channel
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.spanning import SpanningNotifier, SpanningState
from plainsql_server.engine.execution.spanning import new_gid

_LIMIT_S = 30.0


def observe(_: Observation) -> None:
    """Nothing is asked of it here."""


@asynccontextmanager
async def process(dsn: str) -> AsyncIterator[SpanningLocks]:
    """What one process has."""
    freshness, notifier = Freshness(600, 60_000, grace_ms=2_000), SpanningNotifier()
    async with Directory.open(dsn) as directory:
        listening = asyncio.create_task(Channel(dsn, freshness, observe, notifier).run())
        try:
            async with asyncio.timeout(_LIMIT_S):
                while freshness._proven_s < 0:  # noqa: ASYNC110  # another process is watched
                    await asyncio.sleep(0.01)
            yield SpanningLocks(directory, notifier, observe)
        finally:
            await end(listening)


async def take(locks: SpanningLocks, name: str, order: list[str], timeout_ms: int = 60_000) -> None:
    async with locks.hold(f"txn_{name}", "org_1", new_gid(), [], Deadline.after_ms(timeout_ms)):
        order.append(name)


async def in_line(directory: Directory, count: int) -> None:
    """Waits until so many stand in line."""
    statement = "select from spanning_transactions where state = 'waiting'"
    async with asyncio.timeout(_LIMIT_S), directory.connection() as connection:
        while (await connection.execute(statement)).rowcount < count:  # noqa: ASYNC110  # a database is watched
            await asyncio.sleep(0.01)


@pytest.fixture
async def directory(dsn: str) -> AsyncIterator[Directory]:
    async with Directory.open(dsn) as opened:
        async with opened.connection() as connection:
            await connection.execute("INSERT INTO organizations (id, name, tier) VALUES ('org_1', 'one', 'free')")
        yield opened


async def test_a_waiter_is_notified_when_the_lock_is_free(
    dsn: str, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks by itself.
    monkeypatch.setattr(spanning_lock, "_FIRST_LOOK_S", 1_000.0)
    monkeypatch.setattr(spanning_lock, "_LONGEST_LOOK_S", 1_000.0)
    order: list[str] = []
    async with AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(process(dsn)) for _ in range(3)]
        async with first.hold("txn_1", "org_1", new_gid(), [], Deadline.after_ms(60_000)):
            waiting = [asyncio.create_task(take(second, "2", order))]
            await in_line(directory, 1)
            waiting.append(asyncio.create_task(take(third, "3", order)))
            await in_line(directory, 2)
        async with asyncio.timeout(_LIMIT_S):
            await asyncio.gather(*waiting)
    assert order == ["2", "3"]


async def test_a_waiter_polls_rarely(dsn: str, directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    advance = spanning.advance

    async def counted(directory: Directory, id_: str, hold_s: float) -> SpanningState | None:
        nonlocal asked
        asked += 1
        return await advance(directory, id_, hold_s)

    monkeypatch.setattr(spanning, "advance", counted)
    order: list[str] = []
    async with process(dsn) as first, process(dsn) as second:
        async with first.hold("txn_1", "org_1", new_gid(), [], Deadline.after_ms(60_000)):
            with pytest.raises(Exception, match="one at a time"):
                await take(second, "2", order, timeout_ms=3_000)
        assert order == []
        # Some at the beginning, and then two to four in a second.
        assert 5 <= asked <= 24
        await take(second, "3", order)
    assert order == ["3"]
