"""The loops that every process runs go on after any error, also one that nobody thought of."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plainsql_server.control_plane import databases, keys
from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.core.observation import FailureObserved, Observation
from plainsql_server.core.principal import Scope
from plainsql_server.core.tasks import end
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory, DirectoryConnection
from plainsql_server.directory.databases import DatabaseState
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.directory.tally import Tally


class BrokenDirectory(Directory):
    """The same directory, which fails in a way that is not one of the service's errors, a given number of times."""

    def __init__(self, directory: Directory, failures: int) -> None:
        super().__init__(directory._pool)
        self.left = failures

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[DirectoryConnection]:
        if self.left:
            self.left -= 1
            raise RuntimeError("broken")
        async with super().connection() as connection:
            yield connection


@asynccontextmanager
async def running(work: "asyncio.Future[None]") -> AsyncIterator[None]:
    try:
        yield
    finally:
        await end(work)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110  # another task changes it
            await asyncio.sleep(0.02)


async def test_the_finisher_continues_after_any_error(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, dsn: str
) -> None:
    database = await databases.create(directory, organization.id, "main")
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE databases SET state = 'creating', work_after = now() WHERE id = %s", (database.id,))
    seen: list[Observation] = []
    broken = BrokenDirectory(directory, 2)
    finisher = Finisher(broken, seen.append)
    async with running(asyncio.ensure_future(finisher.run())):
        await until(lambda: len(seen) == 1)
        finisher.there_is_work()
        await until(lambda: len(seen) == 2)
        finisher.there_is_work()
        async with asyncio.timeout(20):
            while (await databases.get(directory, database.id)).state is not DatabaseState.READY:  # noqa: ASYNC110  # another task changes it
                await asyncio.sleep(0.02)
    assert [(each.where, each.context) for each in seen if isinstance(each, FailureObserved)] == [
        ("finishing", "RuntimeError: broken")
    ] * 2


async def test_entries_of_the_audit_log_are_removed_after_13_months_and_not_before(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    def at(days: int) -> str:
        created_at = datetime.now(UTC) - timedelta(days=days)
        return f"aud_{int(created_at.timestamp() * 1000):012x}{'0' * 20}"

    def ids() -> set[str]:
        with psycopg.connect(dsn) as connection:
            return {row[0] for row in connection.execute("SELECT id FROM audit WHERE action = 'test'")}

    with psycopg.connect(dsn) as connection:
        for days in (395, 397, 1_000):
            connection.execute(
                "INSERT INTO audit (id, at, organization_id, actor_kind, action, target_id, details)"
                " VALUES (%s, now() - %s * interval '1 day', %s, 'operator', 'test', 'x', '{}')",
                (at(days), days, organization.id),
            )
    kept = {id_ for id_ in ids() if id_ > at(396)}
    assert len(kept) == 1
    async with running(asyncio.ensure_future(Finisher(directory, lambda _: None).run())):
        await until(lambda: ids() == kept)


async def test_usage_is_kept_and_written_later_after_any_error(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, dsn: str
) -> None:
    database = await databases.create(directory, organization.id, "main")
    seen: list[Observation] = []
    broken = BrokenDirectory(directory, 2)
    tally = Tally(broken, 20, seen.append)
    tally.note_usage(organization.id, database.id, 3, 40, 500)

    def written() -> list[tuple[int, ...]]:
        with psycopg.connect(dsn) as connection:
            return connection.execute("SELECT requests, rows, engine_us, bytes FROM usage").fetchall()

    async with running(asyncio.ensure_future(tally.run())):
        await until(lambda: written() == [(1, 3, 40, 500)])
    assert [(each.where, each.context) for each in seen if isinstance(each, FailureObserved)] == [
        ("usage", "RuntimeError: broken")
    ] * 2


async def test_the_time_of_a_key_s_last_use_is_stored_however_late_that_is(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    (first, _), (second, _) = [await keys.create(directory, organization.id, name, [Scope.READ]) for name in "ab"]
    tally = Tally(BrokenDirectory(directory, 1), 20, lambda _: None)
    used = datetime.now(UTC) - timedelta(minutes=5)
    tally.note_key(first.id, used)
    tally.note_key(second.id, used)
    with pytest.raises(RuntimeError, match="broken"):
        await tally.write()
    tally.note_key(first.id, used - timedelta(seconds=9))
    tally.note_key(second.id, used + timedelta(seconds=9))
    await tally.write()
    with psycopg.connect(dsn) as connection:
        stored = connection.execute("SELECT id, last_used_at FROM api_keys").fetchall()
    assert set(stored) == {(first.id, used), (second.id, used + timedelta(seconds=9))}
