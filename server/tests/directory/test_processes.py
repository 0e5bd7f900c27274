"""The directory's list of processes, and the shares of the limits that it gives them."""

import asyncio
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest
from psycopg.types.json import Jsonb

from plainsql_server.core.observation import FailureObserved, MembershipChanged, Observation
from plainsql_server.core.share import WHOLE, Renewed, Share
from plainsql_server.core.tasks import end
from plainsql_server.directory import processes
from plainsql_server.directory.channel import Channel, Notifiers
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.processes import Listing, Membership, Users
from plainsql_server.directory.rights.grants import Role
from server.tests.directory.list_model import ListModel
from server.tests.postgres import as_role

_LIMIT_S = 60.0
_EXPIRE = "UPDATE data_processes SET seen_at = now() - interval '16 seconds'"
_SEEN = "SELECT FROM data_processes WHERE seen_at > now() - interval '10 seconds' AND left_at IS NULL"
_SUM = "SELECT sum(share)::int FROM data_processes WHERE plane = 'data'"


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def data(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(as_role(dsn, Role.DATA), autocommit=True) as connection:
        yield connection


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals that a test need not wait for."""
    monkeypatch.setattr(processes, "RENEW_SOON_S", 0.05)
    monkeypatch.setattr(processes, "RENEW_S", 0.05)


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as ended:
        return ended.pid


@asynccontextmanager
async def channel(dsn: str) -> AsyncIterator[Notifiers]:
    """Notifiers that hear of changes, as those of a process do."""
    notifiers, freshness = Notifiers(), Freshness(900, 60_000, 10_000)
    task = asyncio.create_task(Channel(dsn, freshness, unexpected, notifiers).run())
    await until(lambda: freshness.unavailable is False and notifiers.processes.woken.is_set())
    yield notifiers
    await end(task)


def unexpected(observation: Observation) -> None:
    assert isinstance(observation, MembershipChanged), observation


class FakePermits:
    """Permits that were granted from a share."""

    def __init__(self) -> None:
        self.others_used: Mapping[str, int] = {}
        self.uses_share = True
        self.granted: dict[str, tuple[int, int]] = {}

    def used(self) -> dict[str, tuple[int, int]]:
        return self.granted


class FakePools:
    """Connections that stay open although the share is smaller."""

    def __init__(self) -> None:
        self.open = 0

    def in_use(self) -> int:
        return self.open

    def take_share(self) -> None:
        pass


class Process:
    """A process in the list."""

    def __init__(
        self, directory: Directory, listing: Listing, notifiers: Notifiers, observe: Callable[[Observation], None]
    ) -> None:
        self.share, self.permits, self.pools = Share(), FakePermits(), FakePools()
        self.notifier = notifiers.processes
        self.leaving = asyncio.Event()
        self.membership = Membership(directory, self.share, listing, Users(self.permits, self.pools), observe)
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        await self.membership.join(self.notifier)
        await self.membership.run(self.notifier, self.leaving)

    async def leave(self) -> None:
        await end(self.task)
        await self.membership.leave()

    def holds(self, part: int) -> bool:
        return self.share.held == WHOLE // part


@asynccontextmanager
async def process(
    directory: Directory,
    address: str | None = None,
    *,
    plane: str = "data",
    notifiers: Notifiers | None = None,
    observe: Callable[[Observation], None] = unexpected,
) -> AsyncIterator[Process]:
    """A process for the length of the block, which does not stop cleanly."""
    each = Process(directory, Listing(plane, address), notifiers or Notifiers(), observe)
    try:
        await until(lambda: each.share.held)
        yield each
    finally:
        await end(each.task)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.002)


async def live(directory: Directory) -> tuple[list[str], int]:
    async with directory.connection() as connection:
        return await processes.addresses(connection), len(await processes.members(connection))


async def test_a_process_that_is_alone_has_everything_at_once(directory: Directory, admin: psycopg.Connection) -> None:
    share, seen = Share(), list[Observation]()
    membership = Membership(directory, share, Listing("data"), Users(FakePermits()), seen.append)
    assert share.held == 0
    await membership.join(Notifiers().processes)
    assert share.held == WHOLE
    assert [each.processes for each in seen if isinstance(each, MembershipChanged)] == [1]
    assert admin.execute("SELECT pid, share FROM data_processes").fetchall() == [(os.getpid(), WHOLE)]


@pytest.mark.usefixtures("often")
async def test_processes_divide_the_limits_of_their_plane_and_never_have_more_together(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(process(directory, plane="control"))
        joined = []
        for number in range(1, 5):
            joined.append(await stack.enter_async_context(process(directory, f"a:{number}")))
            while not all(each.holds(number) for each in joined):
                assert sum(each.share.held for each in joined) <= WHOLE
                await asyncio.sleep(0.001)
            assert admin.execute(_SUM).fetchall() == [(WHOLE,)]
        await joined.pop().leave()
        await until(lambda: all(each.holds(3) for each in joined))
        assert control.holds(1)
        assert await live(directory) == (["a:1", "a:2", "a:3"], 4)


async def test_a_change_is_announced_so_nobody_waits_for_a_renewal(
    directory: Directory, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RENEW_SOON_S", _LIMIT_S)
    monkeypatch.setattr(processes, "RENEW_S", _LIMIT_S)
    async with (
        channel(dsn) as one, channel(dsn) as other,
        process(directory, notifiers=one) as first, process(directory, notifiers=other) as second,
    ):  # fmt: skip
        await until(lambda: first.holds(2) and second.holds(2))
        await second.leave()
        await until(lambda: first.holds(1))


@pytest.mark.usefixtures("often")
async def test_what_is_still_in_use_is_not_given_to_others(directory: Directory, admin: psycopg.Connection) -> None:
    async with process(directory) as first:
        first.pools.open = WHOLE * 3 // 4
        async with process(directory) as second:
            await until(lambda: second.holds(4))
            # It uses half only, but has not closed the connections of the other quarter.
            assert first.holds(2)
            assert sorted(admin.execute("SELECT share FROM data_processes")) == [(WHOLE // 4,), (WHOLE * 3 // 4,)]
            first.pools.open = 0
            await until(lambda: second.holds(2))


@pytest.mark.usefixtures("often")
async def test_what_a_process_granted_is_known_to_the_others_also_after_it_left(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(directory) as first, process(directory) as second, process(directory, plane="control") as other:
        first.permits.granted = {"org_a": (90, 7), "org_b": (5, 0)}
        await until(lambda: second.permits.others_used == {"org_a": 7})
        await first.leave()
        await until(lambda: second.permits.others_used == {"org_a": 90, "org_b": 5})
        admin.execute("UPDATE data_processes SET left_at = left_at - interval '63 seconds'")
        await until(lambda: not second.permits.others_used)
        assert not other.permits.others_used


@pytest.mark.usefixtures("often")
async def test_the_share_of_a_process_that_died_is_divided_when_it_was_not_seen(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(directory, "a:1") as first:
        async with process(directory, "a:2") as second:
            await until(lambda: first.holds(2) and second.holds(2))
            second.permits.granted = {"org_a": (90, 0)}
            await until(lambda: admin.execute("SELECT FROM data_processes WHERE used <> '{}'").rowcount)
        assert first.holds(2)
        admin.execute(f"{_EXPIRE} WHERE address = 'a:2'")
        await until(lambda: first.holds(1))
        assert first.permits.others_used == {"org_a": 90}
        assert await live(directory) == (["a:1"], 1)


@pytest.mark.usefixtures("often")
async def test_a_process_that_died_on_the_same_machine_is_noticed_by_its_pid(
    directory: Directory, admin: psycopg.Connection, dead_pid: int
) -> None:
    place = "UPDATE data_processes SET pid = %s, pid_space = %s WHERE id <> %s"
    async with process(directory) as first:
        async with process(directory) as second:
            await until(lambda: first.holds(2) and second.holds(2))
        name, space = oldest(admin)
        admin.execute(place, (dead_pid, "elsewhere", name))
        for _ in range(3):
            await first.membership._try_to_renew(first.notifier)
        # A pid of another machine says nothing.
        assert first.holds(2)
        admin.execute(place, (dead_pid, space, name))
        await until(lambda: first.holds(1))


def oldest(admin: psycopg.Connection) -> tuple[str, str]:
    ((name, space),) = admin.execute("SELECT id, pid_space FROM data_processes ORDER BY started_at LIMIT 1").fetchall()
    return name, space


async def test_the_directory_follows_the_rules_that_the_property_is_tested_with(data: psycopg.Connection) -> None:
    """Random renewals by processes that don't know what they do, and what `ListModel` says to each."""
    draw, model = random.Random(24), ListModel()
    names = [f"proc_{number:032x}" for number in range(6)]
    for _ in range(300):
        name, used = draw.choice(names), {"org_a": (draw.randrange(9), draw.randrange(3))}
        if draw.random() < 0.2:
            data.execute("SELECT leave_process(%s, %s)", (name, Jsonb(used)))
            model.leave(name, used, 0.0)
            continue
        held, dead = draw.randrange(WHOLE), draw.sample(names, draw.choice((0, 0, 0, 1)))
        renew = "SELECT * FROM renew_process(%s, 'host', 1, 'space', 'data', NULL, %s, %s, %s)"
        ((share, target, number, others_used),) = data.execute(renew, (name, held, Jsonb(used), dead)).fetchall()
        assert (Renewed(share, target, number), others_used or {}) == model.renew(name, held, used, 0.0, dead)


async def test_an_address_is_of_the_process_that_has_it_now_and_the_share_of_the_other_one_is_not(
    directory: Directory, admin: psycopg.Connection
) -> None:
    """The other one may be alive, if the addresses that operators advertise are wrong."""
    async with process(directory, "a:1"):
        pass
    notifier, later = Notifiers().processes, Share()
    membership = Membership(directory, later, Listing("data", "a:1"), Users(FakePermits()), unexpected)
    await membership._try_to_renew(notifier)
    rows = admin.execute("SELECT address, share FROM data_processes ORDER BY started_at").fetchall()
    assert rows == [(None, WHOLE), ("a:1", 0)]
    assert later.held == 0


@pytest.mark.usefixtures("often")
async def test_a_process_that_begins_to_stop_has_its_share_and_is_listed_without_its_address(
    directory: Directory,
) -> None:
    async with process(directory, "a:1") as stopping:
        stopping.leaving.set()
        while await live(directory) != ([], 1):
            await stopping.membership._try_to_renew(stopping.notifier)
        assert stopping.holds(1)
        await stopping.leave()
        assert await live(directory) == ([], 0)


@pytest.mark.usefixtures("often")
async def test_a_process_is_listed_again_after_its_row_was_lost(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(directory, "a:1") as kept:
        for loss in (_EXPIRE, "UPDATE data_processes SET left_at = now(), share = 0", "DELETE FROM data_processes"):
            admin.execute(loss)
            await until(lambda: admin.execute(_SEEN).rowcount)
        assert kept.holds(1)
        assert not kept.task.done()


@pytest.mark.usefixtures("often")
async def test_a_share_lapses_with_the_directory_before_the_row_expires_and_the_failure_is_reported_once(
    directory: Directory, admin: psycopg.Connection
) -> None:
    seen: list[Observation] = []

    def failures() -> int:
        return sum(isinstance(each, FailureObserved) for each in seen)

    clock_s = time.monotonic
    async with process(directory, "a:1", observe=seen.append) as kept:
        for number in (1, 2):
            admin.execute("ALTER TABLE data_processes RENAME TO away")
            await until(lambda expected=number: failures() == expected)  # type: ignore[misc]
            assert kept.holds(1)
            kept.share._clock = lambda: clock_s() + 12
            assert kept.share.held == 0
            kept.share._clock = clock_s
            # Several renewals fail, of which only the first is reported.
            await asyncio.sleep(0.3)
            assert failures() == number
            admin.execute("DELETE FROM away; ALTER TABLE away RENAME TO data_processes")
            await until(lambda: admin.execute(_SEEN).rowcount)
        admin.execute("ALTER TABLE data_processes RENAME TO away")
        await kept.leave()
    reported = [each.where for each in seen if isinstance(each, FailureObserved)]
    # Also that it could not leave.
    assert reported[:3] == ["list of processes"] * 3
