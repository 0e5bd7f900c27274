"""Several nodes in one process without Redis, whose permits a real directory counts."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from fractions import Fraction

import psycopg
import pytest
from psycopg.errors import QueryCanceled

from plainsql_server.core.errors import EngineError
from plainsql_server.core.observation import LimiterChanged, Observation
from plainsql_server.core.share import WHOLE, Renewed, Share
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sharing.permits import APPLICATION_NAME, PermitCounts, delete_old
from plainsql_server.limits.counted import from_directory
from plainsql_server.limits.ledger import Ask, LedgerSource
from plainsql_server.limits.opening import from_redis, open_permits
from plainsql_server.limits.permits import MINUTE, Permits, PermitSource
from plainsql_server.limits.window import Window
from server.tests.load import STALL_S
from server.tests.postgres import as_role
from server.tests.processes import wait_for as wait_for_others
from server.tests.redis_server import running_redis

# Longer than a directory may take to answer.
WINDOW = Window(5_000)
_LIMIT_S = 60.0
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def counting(dsn: str) -> LedgerSource:
    return from_directory(lambda: PermitCounts.open(as_role(dsn, Role.DATA)))


@asynccontextmanager
async def nodes(
    dsn: str, count: int = 3, window: Window = MINUTE, observe: Callable[[Observation], None] = lambda _: None
) -> AsyncIterator[list[Permits]]:
    async with AsyncExitStack() as stack:
        share = Share.fixed(Fraction(1, count))
        opened = [open_permits(observe, counting(dsn), share, window=window) for _ in range(count)]
        yield [await stack.enter_async_context(each) for each in opened]


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not is_so():  # noqa: ASYNC110 - states of others, which announce nothing
            await asyncio.sleep(0.01)


async def take(node: Permits, number: int, limit: int, organization: str = "org") -> int:
    """How many of so many requests at once are granted."""
    return sum(each.granted for each in await asyncio.gather(*(node.take(organization, limit) for _ in range(number))))


@pytest.mark.parametrize("run", range(5))
async def test_exactly_200_of_1000_requests_at_once_are_granted_by_three_nodes(dsn: str, run: int) -> None:
    async with nodes(dsn) as three:
        answers = await asyncio.gather(*(three[i % 3].take(f"org_{run}", 200) for i in range(1_000)))
    assert sum(answer.granted for answer in answers) == 200


async def test_one_node_can_use_the_whole_limit_and_a_new_one_gets_what_is_left(dsn: str) -> None:
    async with nodes(dsn, 2) as (first, second):
        assert await take(first, 150, 200) == 150
        assert await take(second, 100, 200) == 50
        async with nodes(dsn, 1) as (third,):
            assert await take(third, 10, 200) == 0
            assert await take(third, 300, 200, "another") == 200


@pytest.fixture
def short_window(admin: psycopg.Connection) -> Iterator[None]:
    """The directory counts in WINDOW."""
    ((function,),) = admin.execute("SELECT pg_get_functiondef('grant_permits'::regproc)")
    minute, short = (f"slot_ms CONSTANT integer := {window.slot_ms};" for window in (MINUTE, WINDOW))
    assert minute in function
    admin.execute(function.replace(minute, short))
    yield
    admin.execute(function)


@pytest.mark.usefixtures("short_window")
async def test_a_permit_is_available_again_after_the_window_and_not_before(dsn: str) -> None:
    """Three nodes that use all they get, for some windows."""
    uses: list[float] = []
    longest_s, last_s = 0.0, time.monotonic()

    async def hammer(node: Permits, until_s: float) -> None:
        nonlocal longest_s, last_s
        while (now_s := time.monotonic()) < until_s:
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            if (await node.take("org", 500)).granted:
                uses.append(time.monotonic())
            await asyncio.sleep(0.002)

    async with nodes(dsn, 3, WINDOW) as three:
        until_s = time.monotonic() + 2.5 * WINDOW.length_ms / 1000
        await asyncio.gather(*(hammer(node, until_s) for node in three for _ in range(3)))
        assert [node.state for node in three] == [PermitSource.SHARED] * 3
    most = first = 0
    # A use is noted too late by what this process stood still just then.
    window_s = WINDOW.length_ms / 1000 - longest_s
    for last, use in enumerate(sorted(uses)):
        while use - uses[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    assert most <= 500
    assert len(uses) >= 0.9 * 2 * 500


async def test_a_lower_limit_is_in_force_at_once_while_requests_go_on(dsn: str) -> None:
    async with nodes(dsn, 2) as (first, second):
        assert await take(first, 60, 200) == 60
        assert await take(second, 50, 100) == 40
        assert await take(first, 10, 100) == 0
        # And a higher one.
        await until(lambda: first.accounts["org"].refused_until_s < time.monotonic())
        first.accounts["org"].refused_until_s = 0.0
        assert await take(first, 200, 160) == 60


async def test_a_process_that_stops_returns_what_it_leased(dsn: str) -> None:
    async with nodes(dsn, 1) as (stopping,):
        used = 0
        while not (used and stopping.accounts["org"].held):
            used += (await stopping.take("org", 1_000)).granted
    async with nodes(dsn, 1) as (other,):
        assert used + await take(other, 1_000, 1_000) == 1_000


class SlowCounts:
    """Takes longer for each organization, and for each question."""

    def __init__(self, counts: PermitCounts, each_s: float, question_s: float) -> None:
        self._counts, self._each_s, self._question_s = counts, each_s, question_s
        self.ping = counts.ping

    async def grant(self, asks: Sequence[Ask]) -> list[tuple[int, int, int, int]]:
        answers = await self._counts.grant(asks)
        await asyncio.sleep(self._question_s + self._each_s * len(asks))
        return answers


def slow(dsn: str, *, each_s: float = 0.0, question_s: float = 0.0) -> LedgerSource:
    @asynccontextmanager
    async def opened() -> AsyncIterator[SlowCounts]:
        async with PermitCounts.open(as_role(dsn, Role.DATA)) as counts:
            yield SlowCounts(counts, each_s, question_s)

    return from_directory(opened)


async def test_many_organizations_at_once_are_served_though_one_question_for_all_would_be_late(dsn: str) -> None:
    source = slow(dsn, each_s=0.001)
    async with open_permits(lambda _: None, source, Share.fixed(Fraction(1)), window=MINUTE) as node:
        async with asyncio.timeout(_LIMIT_S):
            answers = await asyncio.gather(*(node.take(f"org_{number}", 10) for number in range(1_000)))
        assert node.state is PermitSource.SHARED
    assert all(answer.granted and answer.left == 9 for answer in answers)


async def test_requests_are_answered_even_if_every_answer_is_late(dsn: str, admin: psycopg.Connection) -> None:
    source = slow(dsn, question_s=1.5 * MINUTE.life_s)
    async with open_permits(lambda _: None, source, Share.fixed(Fraction(1)), window=MINUTE) as node:
        assert await take(node, 30, 20) == 20
        await until(lambda: not node.accounts["org"].is_asking)
        assert node.state is PermitSource.SHARED
    # They were counted anew, not twice.
    assert admin.execute("SELECT sum(permits)::int FROM permits WHERE organization_id = 'org'").fetchall() == [(20,)]


async def test_a_process_that_joins_does_not_grant_what_others_granted_though_the_directory_can_not_count(
    dsn: str, admin: psycopg.Connection
) -> None:
    """It can connect, but not write: a standby, or one that lacks a right."""
    admin.execute("ALTER FUNCTION grant_permits RENAME TO away")
    share, seen = Share(), list[Observation]()
    share.accept(Renewed(WHOLE // 2, WHOLE // 2, 2), time.monotonic())
    async with open_permits(seen.append, counting(dsn), share, window=MINUTE) as joiner:
        assert joiner.state is PermitSource.LOST
        assert await take(joiner, 100, 200) == 1
        attempts = [each for each in seen if isinstance(each, LimiterChanged)]
    admin.execute("ALTER FUNCTION away RENAME TO grant_permits")
    assert [each.state for each in attempts] == ["lost"]


async def test_a_request_deletes_what_its_organization_used_before_the_window(
    dsn: str, admin: psycopg.Connection
) -> None:
    async with nodes(dsn, 1) as (node,):
        await take(node, 1, 10)
        admin.execute("UPDATE permits SET slot = slot - 103, permits = 5")
        assert await take(node, 20, 10) == 10
    assert admin.execute("SELECT count(*)::int FROM permits WHERE organization_id = 'org'").fetchall() == [(1,)]


async def test_a_question_that_waits_for_a_lock_ends_in_the_directory_too(dsn: str, admin: psycopg.Connection) -> None:
    """It would wait there, with its backend, for as long as the pool's statements may."""
    async with PermitCounts.open(as_role(dsn, Role.DATA)) as counts:
        with psycopg.connect(dsn) as blocking:
            blocking.execute("LOCK TABLE permits")
            with pytest.raises(QueryCanceled):
                await counts.grant([Ask("org", 10, 1, 0, 0, ())])


async def test_both_ledgers_give_the_same_answers(dsn: str) -> None:
    """Random requests of several nodes, asked of Redis and of the directory."""
    draw = random.Random(24)
    with running_redis() as redis:
        async with (
            from_redis(redis.url).open(MINUTE) as one,
            counting(dsn).open(MINUTE) as other,
        ):
            # What was granted last. No slot takes more back: one clock may have begun a slot between two grants.
            latest: dict[str, tuple[int, int, int]] = {}
            for _ in range(200):
                names = draw.sample(["org_a", "org_b", "org_c"], draw.randrange(1, 4))
                asks: list[tuple[Ask, Ask]] = []
                for name in names:
                    limit, needed, wanted = draw.randrange(200), draw.randrange(20), draw.choice((0, 0, 30))
                    given = draw.choice((0, 0, 0, 5))
                    back: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = (), ()
                    if name in latest and draw.randrange(3) == 0:
                        granted, *slots = latest.pop(name)
                        returned = draw.randint(1, granted)
                        back = ((slots[0], returned),), ((slots[1], returned),)
                    asks.append((
                        Ask(name, limit, needed, wanted, given, back[0]),
                        Ask(name, limit, needed, wanted, given, back[1]),
                    ))  # fmt: skip
                found = await one.settle([ask for ask, _ in asks]), await other.settle([ask for _, ask in asks])
                assert [(each.granted, each.left) for each in found[0]] == [
                    (each.granted, each.left) for each in found[1]
                ]
                latest |= {
                    name: (first.granted, first.slot, second.slot)
                    for name, first, second in zip(names, *found, strict=True)
                    if first.granted
                }


async def test_a_lost_directory_leaves_shares_and_hears_later_what_they_granted(
    dsn: str, admin: psycopg.Connection
) -> None:
    seen: list[Observation] = []
    async with nodes(dsn, 2, observe=seen.append) as (one, other):
        assert await take(one, 10, 100) == 10
        admin.execute("ALTER FUNCTION grant_permits RENAME TO away")
        # The share of one of two, with what it got before.
        granted = await take(one, 100, 100)
        assert granted == 40
        with pytest.raises(EngineError, match="The directory does not decide rate limits"):
            await one.check()
        admin.execute("ALTER FUNCTION away RENAME TO grant_permits")
        await until(lambda: one.state is PermitSource.SHARED and not one.accounts["org"].untold)
        assert await take(other, 100, 100) == 50
    states = [each.state for each in seen if isinstance(each, LimiterChanged)]
    assert states[:2] == ["shared", "shared"]
    assert set(states[2:]) >= {"lost", "shared"}


async def test_a_connection_that_is_cut_is_replaced(dsn: str, admin: psycopg.Connection) -> None:
    async with nodes(dsn, 1) as (node,):
        assert await take(node, 1, 10) == 1
        admin.execute(_CUT, (APPLICATION_NAME,))
        assert await take(node, 1, 10) == 1
        await until(lambda: node.state is PermitSource.SHARED and not node.accounts["org"].untold)
        assert await take(node, 20, 10) == 8


@pytest.mark.timing
async def test_a_directory_that_does_not_answer_delays_requests_for_a_second(
    dsn: str, admin: psycopg.Connection
) -> None:
    async with nodes(dsn, 2) as (one, _):
        with psycopg.connect(dsn) as blocking:
            blocking.execute("LOCK TABLE permits")
            began_s = time.monotonic()
            assert await take(one, 100, 100) == 50
            assert time.monotonic() - began_s < 1.0 + STALL_S
        await until(lambda: one.state is PermitSource.SHARED)


def test_an_organization_waits_for_the_commit_of_another_node(dsn: str, admin: psycopg.Connection) -> None:
    """Otherwise both would see the same number left."""
    waiting = "SELECT FROM pg_locks WHERE NOT granted"
    ask = "SELECT (grant_permits('{org}', '{10}', '{8}', '{0}', '{0}', '{}', '{}', '{}')).granted"
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second, ThreadPoolExecutor(1) as thread:
        assert first.execute(ask).fetchall() == [([8],)]
        other = thread.submit(lambda: second.execute(ask).fetchall())
        wait_for_others(lambda: other.done() or admin.execute(waiting).rowcount, _LIMIT_S, lambda: "it does not wait")
        first.commit()
        assert other.result(_LIMIT_S) == [([2],)]


async def test_counts_that_have_ended_are_deleted(dsn: str, admin: psycopg.Connection) -> None:
    async with nodes(dsn, 1) as (node,):
        await take(node, 1, 10, "old")
        admin.execute("UPDATE permits SET ends_at = now() - interval '1 s'")
        await take(node, 1, 10, "new")
    async with Directory.open(as_role(dsn, Role.CONTROL)) as directory:
        await delete_old(directory)
    found = admin.execute("SELECT organization_id FROM permits WHERE organization_id <> ''")
    assert found.fetchall() == [("new",)]
