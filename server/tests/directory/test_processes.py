"""The directory's list of processes, and the shares and leases that it gives them."""

import asyncio
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.errors import SerializationFailure

from plainsql_server.core.observation import FailureObserved, MembershipChanged, Observation
from plainsql_server.core.share import WHOLE, Renewed, Share
from plainsql_server.core.tasks import end
from plainsql_server.directory import processes
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.processes import FORGOTTEN_S, Listing, Membership, Users
from plainsql_server.directory.rights.grants import Role
from plainsql_server.limits.ledger import LeaseAsk
from plainsql_server.limits.permits import Permits
from server.tests.directory.list_model import ListModel, RefusedError
from server.tests.postgres import as_role
from server.tests.processes import wait_for

_LIMIT_S = 60.0
_EXPIRE = "UPDATE data_processes SET seen_at = now() - interval '16 seconds'"
_SEEN = "SELECT FROM data_processes WHERE seen_at > now() - interval '10 seconds'"
_AGE = "UPDATE data_processes SET seen_at = seen_at - %s * interval '1 s'"
_SUM = "SELECT sum(share)::int FROM data_processes WHERE plane = 'data'"
_LEASED = "SELECT permits FROM permit_leases WHERE organization_id = %s ORDER BY permits"


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
    monkeypatch.setattr("plainsql_server.limits.leases.REVIEW_S", 0.05)


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

    def in_use(self) -> int:
        return self.open

    def take_share(self) -> None:
        pass


class Process:
    """A process in the list."""

    def __init__(self, directory: Directory, listing: Listing, observe: Callable[[Observation], None]) -> None:
        self.share, self.pools = Share(), OpenConnections()
        self.permits = Permits(observe, self.share)
        self.permits.lease_from_directory()
        self.leaving = asyncio.Event()
        self.membership = Membership(directory, self.share, listing, Users(self.permits.leases, self.pools), observe)
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        await self.membership.join()
        await self.membership.run(self.leaving)

    async def leave(self) -> None:
        await end(self.task)
        await self.membership.leave()

    async def renews_often(self) -> None:
        """Waits for some renewals that began after this."""
        number = self.membership._number + 3
        await until(lambda: self.membership._number > number)

    def holds(self, part: int) -> bool:
        return self.share.held == WHOLE // part

    async def take(self, number: int, limit: int = 100, organization: str = "org_a") -> int:
        """How many of so many requests at once are granted."""
        answers = await asyncio.gather(*(self.permits.take(organization, limit) for _ in range(number)))
        return sum(answer.granted for answer in answers)


@asynccontextmanager
async def process(
    directory: Directory, address: str | None = None, *, plane: str = "data",
    observe: Callable[[Observation], None] = unexpected,
) -> AsyncIterator[Process]:  # fmt: skip
    """A process for the length of the block, which does not stop cleanly."""
    each = Process(directory, Listing(plane, address), observe)
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


async def test_a_process_that_is_alone_has_everything_at_once(directory: Directory, admin: psycopg.Connection) -> None:
    share, seen = Share(), list[Observation]()
    membership = Membership(directory, share, Listing("data"), Users(), seen.append)
    assert share.held == 0
    await membership.join()
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


@pytest.mark.usefixtures("often")
async def test_what_is_still_in_use_is_not_given_to_others(directory: Directory, admin: psycopg.Connection) -> None:
    async with process(directory) as first:
        await until(lambda: first.holds(1))
        first.pools.open = WHOLE * 3 // 4
        async with process(directory) as second:
            await until(lambda: second.holds(4))
            # It uses half only, but has not closed the connections of the other quarter.
            assert first.holds(2)
            assert sorted(admin.execute("SELECT share FROM data_processes")) == [(WHOLE // 4,), (WHOLE * 3 // 4,)]
            first.pools.open = 0
            await until(lambda: second.holds(2))


@pytest.mark.usefixtures("often")
async def test_all_processes_together_grant_the_limit_wherever_the_requests_go(directory: Directory) -> None:
    async with process(directory) as first, process(directory) as second, process(directory, plane="control") as other:
        assert await first.take(70) == 70
        # What others leased in advance comes back when they don't use it.
        for each, number in ((second, 20), (other, 10)):
            granted = 0
            async with asyncio.timeout(_LIMIT_S):
                while granted < number:
                    granted += await each.take(number - granted)
                    await asyncio.sleep(0.01)
        assert sum([await each.take(20) for each in (first, second, other)]) == 0


@pytest.mark.usefixtures("often")
async def test_the_leases_of_a_process_that_died_count_until_nothing_of_it_does(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(directory) as first:
        async with process(directory) as second:
            assert await second.take(30) == 30
        admin.execute(f"{_EXPIRE} WHERE id = %s", (second.membership._id,))
        await until(lambda: first.holds(1))
        assert await first.take(100) <= 70
        ((leased,),) = admin.execute("SELECT sum(permits)::int FROM permit_leases").fetchall()
        assert leased == 100
        admin.execute(f"{_AGE} WHERE id = %s", (FORGOTTEN_S, second.membership._id))
        await until(lambda: len(admin.execute(_LEASED, ("org_a",)).fetchall()) == 1)


@pytest.mark.usefixtures("often")
async def test_leases_that_are_of_no_use_are_given_back(directory: Directory, admin: psycopg.Connection) -> None:
    async with process(directory) as first:
        assert await first.take(1) == 1
        assert admin.execute(_LEASED, ("org_a",)).fetchall() > [(1,)]
        await until(lambda: admin.execute(_LEASED, ("org_a",)).fetchall() == [(1,)])


@pytest.mark.usefixtures("often")
async def test_the_share_of_a_process_that_died_is_divided_when_it_was_not_seen(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(directory, "a:1") as first:
        async with process(directory, "a:2") as second:
            await until(lambda: first.holds(2) and second.holds(2))
        await first.renews_often()
        assert first.holds(2)
        admin.execute(f"{_EXPIRE} WHERE address = 'a:2'")
        await until(lambda: first.holds(1))
        assert await live(directory) == (["a:1"], 1)


@pytest.mark.usefixtures("often")
async def test_a_process_that_died_on_the_same_machine_is_noticed_by_its_pid(
    directory: Directory, admin: psycopg.Connection, dead_pid: int
) -> None:
    place = "UPDATE data_processes SET pid = %s, pid_space = %s WHERE id <> %s"
    async with process(directory) as first:
        async with process(directory) as second:
            await until(lambda: first.holds(2) and second.holds(2))
        name, space = first.membership._id, first.membership._pid_space
        admin.execute(place, (dead_pid, "elsewhere", name))
        await first.renews_often()
        # A pid of another machine says nothing.
        assert first.holds(2)
        admin.execute(place, (dead_pid, space, name))
        await until(lambda: first.holds(1))


async def test_the_directory_follows_the_rules_that_the_property_is_tested_with(
    data: psycopg.Connection, admin: psycopg.Connection
) -> None:
    """Random renewals by processes that don't know what they do, and what `ListModel` says to each."""
    draw, model, now_s = random.Random(24), ListModel(), 1_000.0
    names = [f"proc_{number:032x}" for number in range(5)]
    numbers = dict.fromkeys(names, 0)
    listed: dict[str, tuple[object, float]] = {}
    for _ in range(300):
        name, choice = draw.choice(names), draw.random()
        if choice < 0.1:
            data.execute("SELECT leave_process(%s)", (name,))
            model.leave(name, now_s)
            names[names.index(name)] = successor = f"proc_{draw.randrange(16**32):032x}"
            numbers[successor] = 0
            continue
        if choice < 0.3:
            seconds = draw.choice((5, 9, 16, 80))
            admin.execute(_AGE, (seconds,))
            now_s += seconds
            continue
        numbers[name] += draw.choice((0, 1, 1, 1))
        held, dead = draw.randrange(WHOLE), draw.sample(names, draw.choice((0, 0, 0, 1)))
        dead = [each for each in dead if each != name]
        asks = [
            LeaseAsk(f"org_{org}", 30, draw.randrange(31), draw.randrange(4), draw.random() < 0.5)
            for org in draw.sample(range(3), draw.randrange(3))
        ]
        try:
            expected = model.renew(name, numbers[name], held, asks, now_s=now_s, dead=dead)
        except RefusedError:
            with pytest.raises(SerializationFailure):
                renew(data, name, numbers[name], held, asks, dead=dead)
            continue
        since, renewed, granted = renew(data, name, numbers[name], held, asks, dead=dead)
        assert (renewed, granted) == (expected.renewed, expected.granted)
        before, listed[name] = listed.get(name), (since, expected.since_s)
        if before is not None:
            assert (since == before[0]) == (expected.since_s == before[1])


def renew(
    connection: psycopg.Connection,
    name: str,
    number: int,
    held: int,
    asks: Sequence[LeaseAsk],
    *,
    dead: Sequence[str] = (),
) -> tuple[object, Renewed, list[tuple[int, int]]]:
    ((since, share, target, number_of, granted, left),) = connection.execute(
        "SELECT * FROM renew_process(%s, 'host', 1, 'space', 'data', NULL, %s, %s, %s, %s, %s, %s, %s, %s)",
        (name, number, held, list(dead), [ask.organization_id for ask in asks], [ask.limit for ask in asks],
         [ask.kept for ask in asks], [ask.needed for ask in asks], [ask.ahead for ask in asks]),
    ).fetchall()  # fmt: skip
    return since, Renewed(share, target, number_of), list(zip(granted, left, strict=True))


@dataclass
class Renewals:
    """Renewals of one process in a thread of its own, as fast as they go."""

    dsn: str
    name: str
    failures: list[str] = field(default_factory=list)

    def run(self, times: int) -> None:
        draw = random.Random(self.name)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for number in range(1, times + 1):
                asks = [
                    LeaseAsk(f"org_{org}", 30, draw.randrange(31), draw.randrange(9), ahead=True)
                    for org in draw.sample(range(4), 3)
                ]
                renew(connection, self.name, number, draw.randrange(WHOLE), asks)
                sums = connection.execute("SELECT sum(permits) FROM permit_leases GROUP BY organization_id").fetchall()
                ((share,),) = connection.execute(_SUM).fetchall()
                if share > WHOLE or any(number > 30 for (number,) in sums):
                    self.failures.append(f"{share} {sums}")


async def test_renewals_at_once_neither_exceed_a_limit_nor_block_each_other(dsn: str) -> None:
    all_of_them = [Renewals(dsn, f"proc_{number:032x}") for number in range(6)]
    await asyncio.gather(*(asyncio.to_thread(each.run, 60) for each in all_of_them))
    assert [each.failures for each in all_of_them] == [[]] * 6


def test_a_process_that_wants_more_waits_for_the_commit_of_another_one_that_does(
    dsn: str, admin: psycopg.Connection
) -> None:
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    names = [f"proc_{number:032x}" for number in range(2)]
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second, ThreadPoolExecutor(1) as thread:
        assert renew(first, names[0], 1, 0, [])[1].share == WHOLE
        other = thread.submit(renew, second, names[1], 1, 0, [])
        wait_for(lambda: other.done() or admin.execute(waiting).rowcount, _LIMIT_S, lambda: "it does not wait")
        first.commit()
        assert other.result(_LIMIT_S)[1].share == 0


async def test_an_address_is_of_the_process_that_has_it_now_and_the_share_of_the_other_one_is_not(
    directory: Directory, admin: psycopg.Connection
) -> None:
    """The other one may be alive, if the addresses that operators advertise are wrong."""
    async with process(directory, "a:1"):
        pass
    later = Share()
    await Membership(directory, later, Listing("data", "a:1"), Users(), unexpected).join()
    rows = admin.execute("SELECT address, share FROM data_processes ORDER BY started_at").fetchall()
    assert rows == [(None, WHOLE), ("a:1", 0)]
    assert later.held == 0


@pytest.mark.usefixtures("often")
async def test_a_process_that_begins_to_stop_has_its_share_and_is_listed_without_its_address(
    directory: Directory,
) -> None:
    async with process(directory, "a:1") as stopping:
        stopping.leaving.set()
        async with asyncio.timeout(_LIMIT_S):
            while await live(directory) != ([], 1):  # noqa: ASYNC110  # another process is watched
                await asyncio.sleep(0.01)
        assert stopping.holds(1)
        await stopping.leave()
        assert await live(directory) == ([], 0)
        assert stopping.share.held == 0


@pytest.mark.usefixtures("often")
async def test_a_process_whose_row_was_lost_is_listed_again_and_has_lost_its_leases(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with process(directory, "a:1") as kept:
        assert await kept.take(10) == 10
        admin.execute(_EXPIRE)
        await until(lambda: admin.execute(_SEEN).rowcount)
        assert kept.permits.accounts["org_a"].leased >= 10
        admin.execute("DELETE FROM data_processes")
        await until(lambda: admin.execute(_SEEN).rowcount and not kept.permits.accounts["org_a"].leased)
        await until(lambda: kept.holds(1))
        assert not kept.task.done()


@contextmanager
def renamed_table(admin: psycopg.Connection) -> Iterator[None]:
    admin.execute("ALTER TABLE data_processes RENAME TO away")
    yield
    admin.execute("ALTER TABLE away RENAME TO data_processes")


@pytest.mark.usefixtures("often")
async def test_a_share_lapses_with_the_directory_before_the_row_expires_and_the_failure_is_reported_once(
    directory: Directory, admin: psycopg.Connection
) -> None:
    seen: list[Observation] = []

    def failures() -> int:
        return sum(isinstance(each, FailureObserved) for each in seen)

    clock_s = time.monotonic
    async with process(directory, "a:1", observe=seen.append) as kept:
        await until(lambda: kept.holds(1))
        assert await kept.take(1) == 1
        for number in (1, 2):
            with renamed_table(admin):
                await until(lambda expected=number: failures() == expected)  # type: ignore[misc]
                # What it has leased, it may use.
                assert await kept.take(1) == 1
                assert kept.holds(1)
                # What it has not, it can't ask for: nobody waits.
                assert await kept.take(1, organization="org_b") == 0
                kept.share._clock = lambda: clock_s() + 12
                assert kept.share.held == 0
                assert await kept.take(1) == 0
                kept.share._clock = clock_s
                # Several renewals fail, of which only the first is reported.
                await asyncio.sleep(0.3)
                assert failures() == number
            await until(lambda: not kept.membership._is_failing)
        with renamed_table(admin):
            await kept.leave()
    reported = [each.where for each in seen if isinstance(each, FailureObserved)]
    # Also that it could not leave.
    assert reported[:3] == ["list of processes"] * 3
