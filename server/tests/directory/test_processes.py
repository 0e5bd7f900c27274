"""The directory's list of data plane processes."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import psycopg
import pytest

from plainsql_server.core.observation import FailureObserved, Observation
from plainsql_server.core.tasks import end
from plainsql_server.directory import processes
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.processes import Membership

_LIMIT_S = 60.0
_EXPIRE = "UPDATE data_processes SET seen_at = now() - interval '16 seconds'"
_SEEN = "SELECT FROM data_processes WHERE seen_at > now() - interval '10 seconds'"


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals that a test need not wait for."""
    monkeypatch.setattr(processes, "RENEW_S", 0.05)


def unexpected(observation: Observation) -> None:
    raise AssertionError(observation)


class Member:
    """A process in the list."""

    def __init__(self, directory: Directory, address: str | None, observe: Callable[[Observation], None]) -> None:
        self.processes = 0
        self.leaving = asyncio.Event()
        membership = Membership(directory, address, observe, self._count)
        self.task = asyncio.create_task(membership.run(self.leaving))

    def _count(self, processes: int) -> None:
        self.processes = processes


@asynccontextmanager
async def member(
    directory: Directory, address: str | None, observe: Callable[[Observation], None] = unexpected
) -> AsyncIterator[Member]:
    """A process for the length of the block, which does not stop cleanly."""
    each = Member(directory, address, observe)
    try:
        await until(lambda: each.processes)
        yield each
    finally:
        await end(each.task)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.002)


async def live(directory: Directory) -> tuple[list[str], int]:
    async with directory.connection() as connection:
        return await processes.addresses(connection), await processes.count(connection)


async def test_processes_are_listed_by_address_and_counted_also_without_one(
    directory: Directory, admin: psycopg.Connection
) -> None:
    assert await live(directory) == ([], 0)
    async with member(directory, "b:2"), member(directory, "a:1"), member(directory, None) as last:
        assert await live(directory) == (["a:1", "b:2"], 3)
        assert last.processes == 3
    assert admin.execute("SELECT DISTINCT pid FROM data_processes").fetchall() == [(os.getpid(),)]


async def test_a_process_that_leaves_is_removed_at_once_and_one_that_dies_when_it_was_not_seen(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with member(directory, "a:1") as leaving:
        leaving.leaving.set()
        await leaving.task
        assert await live(directory) == ([], 0)
    async with member(directory, "a:1"):
        pass
    assert await live(directory) == (["a:1"], 1)
    admin.execute(_EXPIRE)
    assert await live(directory) == ([], 0)
    async with member(directory, "b:2") as other:
        await until(lambda: other.processes == 1)
    assert admin.execute("SELECT address FROM data_processes").fetchall() == [("b:2",)]


async def test_a_replacement_takes_the_place_of_the_process_whose_port_it_has(directory: Directory) -> None:
    for _ in range(2):
        async with member(directory, "a:1"):
            assert await live(directory) == (["a:1"], 1)


@pytest.mark.usefixtures("often")
async def test_a_process_is_listed_again_after_its_row_was_lost(
    directory: Directory, admin: psycopg.Connection
) -> None:
    async with member(directory, "a:1") as kept:
        for loss in (_EXPIRE, "DELETE FROM data_processes"):
            admin.execute(loss)
            await until(lambda: admin.execute(_SEEN).rowcount)
        assert not kept.task.done()


@pytest.mark.usefixtures("often")
async def test_a_directory_that_fails_is_reported_once_and_does_not_end_the_process(
    directory: Directory, admin: psycopg.Connection
) -> None:
    failures: list[Observation] = []
    async with member(directory, "a:1", failures.append) as kept:
        for number in (1, 2):
            admin.execute("ALTER TABLE data_processes RENAME TO away")
            await until(partial(has, failures, number))
            # Several renewals fail, of which only the first is reported.
            await asyncio.sleep(0.3)
            assert has(failures, number)
            admin.execute("ALTER TABLE away RENAME TO data_processes")
            kept.processes = 0
            await until(lambda: kept.processes)
        assert not kept.task.done()
        admin.execute("ALTER TABLE data_processes RENAME TO away")
        kept.leaving.set()
        await kept.task
    # Also that it could not leave.
    reported = [each.where for each in failures if isinstance(each, FailureObserved)]
    assert reported[:3] == ["list of processes"] * 3


def has(failures: list[Observation], number: int) -> bool:
    return len(failures) == number
