"""The directory's list of processes, and the shares that it gives them."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import cast

import psycopg
import pytest

from plainsql_server.core.observation import FailureObserved, MembershipChanged, Observation
from plainsql_server.core.share import WHOLE, Share
from plainsql_server.core.tasks import end
from plainsql_server.directory.channel import Channel
from plainsql_server.directory.connection import Directory, DirectoryConnection
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sharing import processes
from plainsql_server.directory.sharing.processes import Listing, Membership
from server.tests.load import STALL_S
from server.tests.postgres import as_role

_LIMIT_S = 60.0
_EXPIRE = "UPDATE data_processes SET seen_at = now() - interval '16 seconds'"
_SEEN = "SELECT FROM data_processes WHERE seen_at > now() - interval '10 seconds'"
_SUM = "SELECT sum(share)::int FROM data_processes WHERE plane = 'data'"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals that a test need not wait for."""
    monkeypatch.setattr(processes, "RENEW_SOON_S", 0.05)
    monkeypatch.setattr(processes, "RENEW_S", 0.05)


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as ended:
        return ended.pid


def unexpected(observation: Observation) -> None:
    assert isinstance(observation, MembershipChanged), observation


class OpenConnections:
    """Connections that a process has open, as parts of WHOLE."""

    def __init__(self) -> None:
        self.open = 0
        self.changes = 0

    def in_use(self) -> int:
        return self.open

    def take_share(self) -> None:
        self.changes += 1


class Process:
    """A process in the list."""

    def __init__(self, dsn: str, listing: Listing, observe: Callable[[Observation], None]) -> None:
        self.share, self.pools, self.announced = Share(), OpenConnections(), asyncio.Event()
        self.leaving = asyncio.Event()
        self.membership = Membership(
            as_role(dsn, Role.DATA), self.share, listing, observe, announced=self.announced, pools=self.pools
        )
        self.task = asyncio.create_task(self.membership.run(self.leaving))

    async def leave(self) -> None:
        await end(self.task)
        await self.membership.leave()

    async def renews_often(self) -> None:
        """Waits for some renewals that began after this."""
        number = self.membership._number + 3
        await until(lambda: self.membership._number > number)

    def holds(self, part: int) -> bool:
        return self.share.held == WHOLE // part


@asynccontextmanager
async def process(
    dsn: str, address: str | None = None, *, plane: str = "data", observe: Callable[[Observation], None] = unexpected
) -> AsyncIterator[Process]:
    """A process for the length of the block, which does not stop cleanly."""
    each = Process(dsn, Listing(plane, address), observe)
    try:
        await until(lambda: each.share.is_current)
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


async def test_a_process_that_is_alone_has_everything_at_once(dsn: str, admin: psycopg.Connection) -> None:
    seen: list[Observation] = []
    async with process(dsn, observe=seen.append) as alone:
        await until(alone.membership.joined.is_set)
        assert alone.membership._number == 1
        assert alone.holds(1)
        assert alone.share.granting_part_of(100) == 100
        assert admin.execute("SELECT pid, share FROM data_processes").fetchall() == [(os.getpid(), WHOLE)]
    assert [each.processes for each in seen if isinstance(each, MembershipChanged)] == [1]


@pytest.mark.timing
async def test_a_process_that_joins_has_its_share_when_it_begins_to_serve(dsn: str) -> None:
    """The directory announces it, as to the planes, so it does not wait for the others' next renewals."""
    async with process(dsn) as first:
        freshness, seen = Freshness(500, 1_000, 1_000), list[Observation]()
        channel = Channel(dsn, freshness, seen.append, processes_changed=first.announced)
        listening = asyncio.create_task(channel.run())
        await until(lambda: freshness.holds(time.monotonic() - 0.6))
        began_s = time.monotonic()
        async with process(dsn) as second:
            await until(second.membership.joined.is_set)
            assert second.holds(2)
            assert time.monotonic() - began_s < 1.0 + STALL_S
            assert first.holds(2)
        await end(listening)
    assert not seen


async def test_a_process_that_joins_serves_even_if_the_others_do_not_answer(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "JOIN_LIMIT_S", 0.3)
    async with process(dsn) as first:
        await end(first.task)
        async with process(dsn) as second:
            await until(second.membership.joined.is_set)
            assert second.share.held == 0


async def test_a_process_joins_even_without_the_directory() -> None:
    seen: list[Observation] = []
    dsn = "host=127.0.0.1 port=1 dbname=unused"
    membership = Membership(dsn, Share(), Listing("data"), seen.append, announced=asyncio.Event())
    running = asyncio.create_task(membership.run(asyncio.Event()))
    await until(membership.joined.is_set)
    await end(running)
    assert [each.where for each in seen if isinstance(each, FailureObserved)] == ["list of processes"]


@pytest.mark.usefixtures("often")
async def test_processes_divide_the_limits_of_their_plane_and_never_have_more_together(
    dsn: str, directory: Directory, admin: psycopg.Connection
) -> None:
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(process(dsn, plane="control"))
        joined = []
        for number in range(1, 5):
            joined.append(await stack.enter_async_context(process(dsn, f"a:{number}")))
            while not all(each.holds(number) for each in joined):
                assert sum(each.share.held for each in joined) <= WHOLE
                await asyncio.sleep(0.001)
            assert admin.execute(_SUM).fetchall() == [(WHOLE,)]
        await joined.pop().leave()
        await until(lambda: all(each.holds(3) for each in joined))
        assert control.holds(1)
        assert await live(directory) == (["a:1", "a:2", "a:3"], 4)


@pytest.mark.usefixtures("often")
async def test_what_is_still_in_use_is_not_given_to_others(dsn: str, admin: psycopg.Connection) -> None:
    async with process(dsn) as first:
        await until(lambda: first.holds(1))
        first.pools.open = WHOLE * 3 // 4
        async with process(dsn) as second:
            await until(lambda: second.holds(4))
            # It uses half only, but has not closed the connections of the other quarter.
            assert first.holds(2)
            assert sorted(admin.execute("SELECT share FROM data_processes")) == [(WHOLE // 4,), (WHOLE * 3 // 4,)]
            first.pools.open = 0
            await until(lambda: second.holds(2))


@pytest.mark.usefixtures("often")
async def test_the_share_of_a_process_that_died_is_divided_when_it_was_not_seen(
    dsn: str, directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(dsn, "a:1") as first:
        async with process(dsn, "a:2") as second:
            await until(lambda: first.holds(2) and second.holds(2))
        await first.renews_often()
        assert first.holds(2)
        admin.execute(f"{_EXPIRE} WHERE address = 'a:2'")
        await until(lambda: first.holds(1))
        assert await live(directory) == (["a:1"], 1)


@pytest.mark.usefixtures("often")
async def test_a_process_that_died_on_the_same_machine_is_noticed_by_its_pid(
    dsn: str, admin: psycopg.Connection, dead_pid: int
) -> None:
    place = "UPDATE data_processes SET pid = %s, pid_space = %s WHERE id <> %s"
    async with process(dsn) as first:
        async with process(dsn) as second:
            await until(lambda: first.holds(2) and second.holds(2))
        name, space = first.membership._id, first.membership._pid_space
        admin.execute(place, (dead_pid, "elsewhere", name))
        await first.renews_often()
        # A pid of another machine says nothing.
        assert first.holds(2)
        admin.execute(place, (dead_pid, space, name))
        await until(lambda: first.holds(1))


@pytest.mark.usefixtures("often")
async def test_a_process_whose_row_something_else_ended_takes_another_one(dsn: str, data: psycopg.Connection) -> None:
    seen: list[Observation] = []
    async with process(dsn, observe=seen.append) as ended:
        await until(lambda: ended.holds(1))
        name = ended.membership._id
        data.execute("SELECT leave_process(%s, %s)", (name, ended.membership._pid_space))
        await until(lambda: ended.membership._id != name and ended.holds(1))
        # The old row is not counted any more.
        assert ended.share.processes == 1
    assert [type(each) for each in seen].count(FailureObserved) == 1


async def test_an_address_is_of_the_process_that_has_it_now_and_the_share_of_the_other_one_is_not(
    dsn: str, admin: psycopg.Connection
) -> None:
    """The other one may be alive, if the addresses that operators advertise are wrong."""
    async with process(dsn, "a:1"):
        pass
    async with process(dsn, "a:1") as later:
        rows = admin.execute("SELECT address, share FROM data_processes ORDER BY started_at").fetchall()
        assert rows == [(None, WHOLE), ("a:1", 0)]
        assert later.share.held == 0


@pytest.mark.usefixtures("often")
async def test_a_process_that_begins_to_stop_has_its_share_and_is_listed_without_its_address(
    dsn: str, directory: Directory
) -> None:
    async with process(dsn, "a:1") as stopping:
        stopping.leaving.set()
        async with asyncio.timeout(_LIMIT_S):
            while await live(directory) != ([], 1):  # noqa: ASYNC110  # another process is watched
                await asyncio.sleep(0.01)
        assert stopping.holds(1)
        await stopping.leave()
        assert await live(directory) == ([], 0)
        assert stopping.share.held == 0


@pytest.mark.usefixtures("often")
async def test_a_process_whose_row_was_lost_is_listed_again(dsn: str, admin: psycopg.Connection) -> None:
    async with process(dsn, "a:1") as kept:
        admin.execute(_EXPIRE)
        await until(lambda: admin.execute(_SEEN).rowcount)
        admin.execute("DELETE FROM data_processes")
        await until(lambda: admin.execute(_SEEN).rowcount)
        await until(lambda: kept.holds(1))
        assert not kept.task.done()


async def test_a_process_that_stops_gives_its_share_back_at_once(dsn: str, admin: psycopg.Connection) -> None:
    async with process(dsn, "a:1") as first, process(dsn, "a:2") as second:
        first.announced.set()
        await until(lambda: second.holds(2))
        await first.leave()
        # Before anything expired.
        assert admin.execute("SELECT share FROM data_processes ORDER BY started_at").fetchall() == [(0,), (WHOLE // 2,)]
        second.announced.set()
        await until(lambda: second.holds(1))
        assert second.share.granting_part_of(100) == 0


async def test_a_share_lapses_by_itself_and_the_pools_hear_of_it(
    dsn: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plainsql_server.core.share.LAPSE_S", 0.5)
    async with process(dsn) as silent:
        await end(silent.task)
        changes = silent.pools.changes
        await until(lambda: silent.pools.changes > changes)
        assert silent.share.held == 0


class LateRenewals:
    """A connection on which the same share is renewed again and again, by request."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def execute(self, *_: object) -> "LateRenewals":
        await self.may_answer.wait()
        return self

    async def fetchone(self) -> dict[str, object]:
        return {"share": WHOLE, "target": WHOLE, "processes": 1, "is_first": True}


class HeldConnections(OpenConnections):
    """Connections that follow the share as pools do."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share
        self.held = 0

    def take_share(self) -> None:
        self.held = self._share.held


async def test_pools_get_a_share_back_that_lapsed_while_it_was_being_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    share, connection = Share(), LateRenewals()
    pools = HeldConnections(share)
    membership = Membership("", share, Listing("data"), unexpected, announced=asyncio.Event(), pools=pools)
    monkeypatch.setattr("plainsql_server.core.share.LAPSE_S", 0.2)
    await membership._renew(cast(DirectoryConnection, connection), [])
    assert pools.held == WHOLE
    monkeypatch.setattr("plainsql_server.core.share.LAPSE_S", 60.0)
    connection.may_answer.clear()
    renewing = asyncio.create_task(membership._renew(cast(DirectoryConnection, connection), []))
    await until(lambda: pools.held == 0)
    connection.may_answer.set()
    await renewing
    assert pools.held == share.held == WHOLE


async def test_attempts_to_renew_become_rare_until_one_succeeds(
    dsn: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RENEW_SOON_S", 0.02)
    monkeypatch.setattr(processes, "RENEW_S", 0.08)
    seen: list[Observation] = []
    async with process(dsn, observe=seen.append) as kept:
        with without_functions(admin):
            await until(lambda: kept.membership._failed_s == 0.08)
        await until(lambda: kept.membership._failed_s == 0.02)


async def test_a_renewal_that_waits_for_a_lock_ends_in_the_directory_too(
    dsn: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait there, with its backend, for as long as the pool's statements may."""
    monkeypatch.setattr(processes, "RENEW_S", 0.05)
    seen: list[Observation] = []

    def failures() -> list[FailureObserved]:
        return [each for each in seen if isinstance(each, FailureObserved)]

    async with process(dsn, observe=seen.append) as kept:
        await until(lambda: kept.holds(1))
        with psycopg.connect(dsn) as blocking:
            blocking.execute("LOCK TABLE data_processes")
            await until(failures)
    assert "statement timeout" in failures()[0].context


async def test_a_directory_that_does_not_answer_is_given_up_soon(
    dsn: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling the statement would wait for the answer to that."""
    monkeypatch.setattr(processes, "RENEW_S", 0.05)
    monkeypatch.setattr(processes, "_RENEWAL_LIMIT_S", 0.5)
    seen: list[Observation] = []
    with psycopg.connect(dsn) as blocking:
        async with process(dsn, observe=seen.append) as kept:
            await until(lambda: kept.holds(1))
            blocking.execute("LOCK TABLE data_processes")
            began_s = time.monotonic()
            await until(lambda: any(isinstance(each, FailureObserved) for each in seen))
            assert time.monotonic() - began_s < 5.0 + STALL_S
            blocking.rollback()
            await kept.renews_often()


@contextmanager
def without_functions(admin: psycopg.Connection) -> Iterator[None]:
    admin.execute("ALTER FUNCTION renew_process RENAME TO away; ALTER FUNCTION leave_process RENAME TO away_too")
    yield
    admin.execute("ALTER FUNCTION away RENAME TO renew_process; ALTER FUNCTION away_too RENAME TO leave_process")


@pytest.mark.usefixtures("often")
async def test_a_failure_is_reported_once_however_long_it_lasts(dsn: str, admin: psycopg.Connection) -> None:
    seen: list[Observation] = []

    def failures() -> int:
        return sum(isinstance(each, FailureObserved) for each in seen)

    clock_s = time.monotonic
    async with process(dsn, "a:1", observe=seen.append) as kept:
        await until(lambda: kept.holds(1))
        for number in (1, 2):
            with without_functions(admin):
                await until(lambda expected=number: failures() == expected)  # type: ignore[misc]  # mypy infers no lambda with a default
                assert kept.holds(1)
                kept.share._clock = lambda: clock_s() + 12
                assert kept.share.held == 0
                kept.share._clock = clock_s
                tried = kept.membership._number
                # Several renewals fail, of which only the first is reported.
                await until(lambda before=tried: kept.membership._number > before + 2)  # type: ignore[misc]  # as above
                assert failures() == number
            await until(lambda: not kept.membership._is_failing)
        with without_functions(admin):
            await kept.leave()
    reported = [each.where for each in seen if isinstance(each, FailureObserved)]
    # Also that it could not leave.
    assert reported == ["list of processes"] * 3
