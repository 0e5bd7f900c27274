"""The channel of changes, and what is believed while it is sound, cut or silent."""

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import psycopg
import pytest

from plainsql_server.core.observation import FailureObserved, Observation
from plainsql_server.core.tasks import end
from plainsql_server.directory import freshness
from plainsql_server.directory.cache import Cache
from plainsql_server.directory.channel import APPLICATION_NAME, Channel
from plainsql_server.directory.freshness import Freshness
from server.tests.postgres import Postgres

SHORT_MS = 600
# For tests in which nothing may expire, even if the machine stands still for a while.
NOT_SO_SHORT_MS = 20_000
LONG_MS = 60_000
_LIMIT_S = 60.0

_SEED = """
    INSERT INTO organizations (id, name, tier) VALUES ('org_1', 'one', 'free'), ('org_2', 'two', 'free');
    INSERT INTO cells (id, name, conninfo, admin_role, state) VALUES ('cell_1', 'local', '', 'admin', 'active');
    INSERT INTO databases (id, organization_id, name, state, is_default, engine_name, cell_id)
    VALUES ('db_1', 'org_1', 'main', 'ready', true, 'd_1', 'cell_1');
    INSERT INTO api_keys (id, organization_id, name, digest, shown_prefix, last_four, scopes)
    VALUES ('key_1', 'org_1', 'k', sha256('1'), 'svc_k_abcd', 'wxyz', '{read}');
    INSERT INTO sessions (id, organization_id, key_id, digest, scopes, created_at, expires_at)
    VALUES ('ses_1', 'org_1', 'key_1', sha256('2'), '{read}', now(), now() + interval '1 day');
"""


class Node:
    """What one process has: a freshness, a channel, and a memory, whose look-ups are counted."""

    def __init__(self, short_ms: int = SHORT_MS) -> None:
        self.freshness = Freshness(short_ms, LONG_MS, grace_ms=2_000)
        self.failures: list[FailureObserved] = []
        self.looked_up: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.cache: Cache[str, str] = Cache(self._look_up, self.freshness, lambda key, _: key)

    async def _look_up(self, key: str) -> str:
        self.looked_up.append(key)
        await self.hold.wait()
        return f"answer {len(self.looked_up)}"

    def observe(self, observation: Observation) -> None:
        assert isinstance(observation, FailureObserved)
        self.failures.append(observation)


@asynccontextmanager
async def listening(dsn: str, short_ms: int = SHORT_MS) -> AsyncIterator[Node]:
    node = Node(short_ms)
    task = asyncio.create_task(Channel(dsn, node.freshness, node.observe).run())
    try:
        await until(lambda: not node.freshness.unavailable and node.freshness._proven_s > 0)
        yield node
    finally:
        await end(task)


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.002)


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_SEED)
        yield connection


def listeners(admin: psycopg.Connection) -> set[int]:
    """The backends that listen in this test's database."""
    rows = admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()",
        (APPLICATION_NAME,),
    )
    return {pid for (pid,) in rows}


@contextmanager
def stopped(pids: set[int]) -> Iterator[None]:
    """Holds processes still: a connection to one is open and says nothing."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_an_idle_channel_sleeps(dsn: str) -> None:
    async with listening(dsn, NOT_SO_SHORT_MS):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        await asyncio.sleep(1)
        # psycopg's own waiting wakes up ten times.
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 5


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE api_keys SET revoked_at = now()",
        "UPDATE api_keys SET scopes = '{write}'",
        "UPDATE api_keys SET expires_at = now()",
        "UPDATE api_keys SET database_id = 'db_1'",
        "UPDATE sessions SET ended_at = now()",
        "DELETE FROM sessions",
        "UPDATE databases SET state = 'suspended'",
        "UPDATE databases SET name = 'renamed'",
        "UPDATE databases SET is_default = false",
        "UPDATE databases SET plain = false",
        "UPDATE organizations SET tier = 'standard' WHERE id = 'org_1'",
    ],
)
async def test_every_relevant_change_is_announced_whoever_makes_it(
    dsn: str, admin: psycopg.Connection, change: str
) -> None:
    async with listening(dsn, NOT_SO_SHORT_MS) as node:
        assert await node.cache.get("org_1") == "answer 1"
        assert await node.cache.get("org_2") == "answer 2"
        admin.execute(change)
        await until(lambda: node.cache.remembered("org_1") is None)
        assert node.cache.remembered("org_2") == "answer 2"


async def test_a_changed_cell_address_invalidates_every_cached_lookup(dsn: str, admin: psycopg.Connection) -> None:
    async with listening(dsn, NOT_SO_SHORT_MS) as node:
        await node.cache.get("org_1")
        admin.execute("UPDATE cells SET conninfo = 'host=/elsewhere'")
        await until(lambda: node.cache.remembered("org_1") is None)


async def test_the_use_of_a_key_is_not_announced(dsn: str, admin: psycopg.Connection) -> None:
    async with listening(dsn, NOT_SO_SHORT_MS) as node:
        await node.cache.get("org_1")
        admin.execute("UPDATE api_keys SET last_used_at = now()")
        admin.execute("UPDATE organizations SET tier = 'standard' WHERE id = 'org_2'")
        await until(lambda: node.freshness.changes)
        assert node.cache.remembered("org_1") is not None


async def test_lookups_are_trusted_for_long_while_the_channel_works(dsn: str, admin: psycopg.Connection) -> None:
    async with listening(dsn) as node:
        async with asyncio.timeout(_LIMIT_S * 3):
            while True:
                answer = await node.cache.get("org_1")
                await asyncio.sleep(SHORT_MS / 1000 * 2)
                # After a machine that stood still for the short time the channel is another, and its lookups are new.
                if node.cache.remembered("org_1") == answer:
                    break


def test_an_answer_is_believed_to_the_end_of_its_time_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(freshness, "time", SimpleNamespace(monotonic=lambda: now_s))
    believed = Freshness(SHORT_MS, LONG_MS, grace_ms=2_000)
    asked_s = now_s
    now_s = asked_s + SHORT_MS / 1000 - 0.001
    assert believed.holds(asked_s)
    now_s += 0.002
    assert not believed.holds(asked_s)
    # A proof lets it live on, for the short time after the proof.
    believed._heard_since_s = asked_s
    believed.proven(proven_s := asked_s + 5)
    now_s = proven_s + SHORT_MS / 1000 - 0.001
    assert believed.holds(asked_s)
    now_s += 0.002
    assert not believed.holds(asked_s)
    believed.proven(asked_s + LONG_MS / 1000)
    now_s = asked_s + LONG_MS / 1000 + 0.001
    assert not believed.holds(asked_s)


async def test_without_a_channel_lookups_are_trusted_only_briefly() -> None:
    node = Node()
    asked_s = time.monotonic()
    await node.cache.get("org_1")
    # Far less than the long time.
    await until(lambda: node.cache.remembered("org_1") is None)
    assert time.monotonic() - asked_s >= SHORT_MS / 1000


async def test_a_channel_that_dies_silently_is_detected_within_the_short_period(
    dsn: str, admin: psycopg.Connection
) -> None:
    async with listening(dsn) as node:
        await node.cache.get("org_1")
        await asyncio.sleep(SHORT_MS / 1000 * 1.5)
        await until(lambda: node.cache.remembered("org_1"))
        before = listeners(admin)
        with stopped(before):
            admin.execute("UPDATE api_keys SET revoked_at = now()")
            # Far less than the long time.
            await until(lambda: node.cache.remembered("org_1") is None)
            # It is replaced although the old one never answers.
            await until(lambda: listeners(admin) - before)
        assert len(node.failures) == 1


async def test_a_lookup_from_before_a_lost_channel_is_trusted_only_briefly(dsn: str, admin: psycopg.Connection) -> None:
    """Changes while the channel is down are not announced."""
    async with listening(dsn) as node:
        asked_s = time.monotonic()
        await node.cache.get("org_1")
        before = listeners(admin)
        (pid,) = before
        admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        await until(lambda: node.freshness._heard_since_s > asked_s)
        await until(lambda: time.monotonic() - node.freshness._proven_s < 0.1)
        await asyncio.sleep(SHORT_MS / 1000)
        assert node.cache.remembered("org_1") is None
        await node.cache.get("org_1")
        await asyncio.sleep(SHORT_MS / 1000 * 1.5)
        await until(lambda: node.cache.remembered("org_1") == "answer 2")


async def test_a_lookup_in_flight_during_a_change_notification_is_not_cached(
    dsn: str, admin: psycopg.Connection
) -> None:
    async with listening(dsn) as node:
        node.hold.clear()
        asking = asyncio.ensure_future(node.cache.get("org_1"))
        await until(lambda: node.looked_up)
        admin.execute("UPDATE api_keys SET revoked_at = now()")
        await until(lambda: node.freshness.changes)
        node.hold.set()
        assert await asking == "answer 1"
        assert node.cache.remembered("org_1") is None


async def test_an_unavailable_directory_is_tolerated_for_the_grace_period(postgres: Postgres) -> None:
    node = Node()
    await node.cache.get("org_1")
    assert await node.cache.last_known("org_1") is None, "the directory is not away"
    task = asyncio.create_task(Channel("host=/nowhere dbname=none", node.freshness, node.observe).run())
    await until(lambda: node.freshness.unavailable)
    node.hold.clear()
    assert await node.cache.last_known("org_1") == "answer 1"
    assert await node.cache.last_known("org_2") is None, "nothing is known of it"
    await asyncio.sleep(2.1)
    assert await node.cache.last_known("org_1") is None, "too old"
    node.hold.set()
    await end(task)
    assert len(node.failures) == 1


async def test_a_successful_lookup_replaces_the_cached_one(postgres: Postgres) -> None:
    node = Node()
    await node.cache.get("org_1")
    node.freshness.unavailable = True
    assert await node.cache.last_known("org_1") is None
    assert await node.cache.get("org_1") == "answer 2"
