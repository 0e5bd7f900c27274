"""Creation and deletion of a database, cut off after every single statement: they are finished, and nothing leaks.

What is cut off is cut off as a crash does it: no statement follows, transactions are rolled back by the engine,
and locks go with their connections. `PLAINSQL_TEST_CUTS=1` is the full size: every statement, not every fifth.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import branches, databases, organizations
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.core.observation import Observation
from plainsql_server.directory import databases as stored
from plainsql_server.directory.branching import branches as stored_branches
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.engine.admin import provisioning
from server.tests.control_plane.cell_state import disagreements
from server.tests.load import size
from server.tests.postgres import SUPERUSER, Postgres

pytestmark = pytest.mark.chaos

EVERY = size("PLAINSQL_TEST_CUTS", 5)
# More than any of these takes, so that a test which never comes to its end fails.
_MOST_STATEMENTS = 200


@dataclass(frozen=True)
class Place:
    """An organization that may have many databases, and a cell."""

    directory: Directory
    dsn: str
    organization_id: str
    postgres: Postgres
    there_before: set[str]

    def agrees(self) -> bool:
        """Whether the cell has what the directory knows and nothing else; other tests' databases aside."""
        return disagreements(self.dsn, self.postgres.dsn()) == {"leaked": self.there_before, "lost": set()}

    async def databases(self) -> list[DatabaseRecord]:
        return await databases.list_(self.directory, self.organization_id)


@pytest.fixture
async def place(directory: Directory, cell: CellRecord, postgres: Postgres, dsn: str) -> Place:
    organization = await organizations.create(directory, "Acme", "dedicated")
    return Place(directory, dsn, organization.id, postgres, disagreements(dsn, postgres.dsn())["leaked"])


class Killed(BaseException):
    """Nobody handles it, as nobody handles kill -9."""


# True in the work that is cut off and in the tasks that it starts. Not in those of the directory's pool, which connect
# in the background: a pool whose task was killed would fail later, when it is closed.
_is_cut_off = ContextVar("_is_cut_off", default=False)


class Fuse:
    """Counts the statements that work sends to directory and cell, and kills after so many of them."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is not None and _is_cut_off.get():
            self.left -= 1
            if self.left < 0:
                raise Killed


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    burning = Fuse()
    execute = psycopg.AsyncConnection.execute

    async def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        # A statement that was under way when the client died is done by the engine all the same.
        result = await execute(self, *arguments, **options)
        burning.burn()
        return result

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", counted)
    return burning


async def cut_off_everywhere(fuse: Fuse, work: Callable[[int], Awaitable[object]]) -> int:
    """Does the work again and again, cut off one statement later each time, until it comes to its end; how often.

    A number tells which time it is.
    """
    cuts = 0
    _is_cut_off.set(True)
    for after in range(0, _MOST_STATEMENTS, EVERY):
        fuse.left = after
        try:
            await work(after)
        except Killed:
            cuts += 1
            continue
        finally:
            fuse.left = None
        return cuts
    raise AssertionError("it never came to its end")


def nothing_fails(observation: Observation) -> None:
    raise AssertionError(observation)


async def finish_all(place: Place) -> None:
    """What any control process does when the claims of a dead one are over."""
    with psycopg.connect(place.dsn) as connection:
        connection.execute("UPDATE databases SET work_after = now() WHERE work_after > now() AND restores_to IS NULL")
    finisher = Finisher(place.directory, nothing_fails)
    while await finisher.finish_some():
        pass


async def cut_off_creations(place: Place, fuse: Fuse) -> int:
    return await cut_off_everywhere(fuse, lambda n: databases.create(place.directory, place.organization_id, f"db{n}"))


async def test_a_creation_interrupted_after_any_statement_is_finished_by_another_process(
    place: Place, fuse: Fuse
) -> None:
    cuts = await cut_off_creations(place, fuse)
    assert cuts > 15 / EVERY
    assert DatabaseState.CREATING in {database.state for database in await place.databases()}
    assert place.agrees()
    await finish_all(place)
    finished = await place.databases()
    assert {database.state for database in finished} == {DatabaseState.READY}
    assert place.agrees()
    for database in finished:
        with place.postgres.connect(database.owner_role, database.engine_name) as owner:
            owner.execute("CREATE TABLE t AS SELECT 1 AS one")
        with place.postgres.connect(database.reader_role, database.engine_name) as reader:
            assert reader.execute("SELECT one FROM t").fetchall() == [(1,)]


async def test_a_branch_interrupted_after_any_statement_is_dropped_by_another_process(place: Place, fuse: Fuse) -> None:
    parent = await databases.create(place.directory, place.organization_id, "main")
    with place.postgres.connect(parent.owner_role, parent.engine_name) as owner:
        owner.execute("CREATE TABLE t AS SELECT 1 AS one")

    async def create(number: int) -> None:
        # What a request that died held is free again after some seconds.
        await stored_branches.release(place.directory, parent)
        branch = NewBranch(parent, None)
        await branches.create(place.directory, place.organization_id, f"db{number}", branch)

    assert await cut_off_everywhere(fuse, create) > 30 / EVERY
    assert place.agrees()
    # An upgrade may come in between. The parent can be dropped with half copies about.
    await provisioning.renew_rights(place.postgres.conninfo, SUPERUSER)
    await databases.delete(place.directory, parent, restore_s=0, restorable=False)
    await finish_all(place)
    finished = await place.databases()
    assert {database.state for database in finished} == {DatabaseState.READY}
    # Those that were cut off after they were complete, and the last one.
    assert 1 <= len(finished) <= 1 + 10 / EVERY
    assert place.agrees()
    for database in finished:
        for role in (database.owner_role, database.reader_role):
            with place.postgres.connect(role, database.engine_name) as tenant:
                assert tenant.execute("SELECT one FROM t").fetchall() == [(1,)]


async def test_a_creation_interrupted_after_any_statement_can_be_deleted(place: Place, fuse: Fuse) -> None:
    await cut_off_creations(place, fuse)
    for database in await place.databases():
        await databases.delete(place.directory, database, restore_s=0, restorable=False)
    await finish_all(place)
    assert await place.databases() == []
    assert place.agrees()


async def test_a_deletion_interrupted_after_any_statement_is_finished_by_another_process(
    place: Place, fuse: Fuse
) -> None:
    database = await databases.create(place.directory, place.organization_id, "main")
    deleting = await databases.delete(place.directory, database, restore_s=0, restorable=False)

    async def drop(_: int) -> None:
        await databases.drop(place.directory, deleting)

    assert await cut_off_everywhere(fuse, drop) > 5 / EVERY
    await finish_all(place)
    assert (await databases.get(place.directory, database.id)).state is DatabaseState.DELETED
    assert place.agrees()


def hold_up(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Has a creation held up just before it begins on the cell, while something else happens."""
    create = provisioning.create_database

    async def late(*arguments: Any) -> None:
        monkeypatch.setattr(provisioning, "create_database", create)
        await meanwhile()
        await create(*arguments)

    monkeypatch.setattr(provisioning, "create_database", late)


async def test_a_delayed_creation_does_not_recreate_a_dropped_database(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def delete() -> None:
        (begun,) = await place.databases()
        await databases.delete(place.directory, begun, restore_s=0, restorable=False)
        await finish_all(place)

    hold_up(monkeypatch, delete)
    created = await databases.create(place.directory, place.organization_id, "main")
    assert created.state is DatabaseState.DELETED
    assert place.agrees()


async def test_a_creation_finished_by_another_process_is_ready(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_up(monkeypatch, lambda: finish_all(place))
    created = await databases.create(place.directory, place.organization_id, "main")
    assert created.state is DatabaseState.READY


async def test_unfinished_work_is_given_to_one_at_a_time(place: Place) -> None:
    made = [await databases.create(place.directory, place.organization_id, f"db{n}") for n in range(3)]
    for database in made:
        await databases.delete(place.directory, database, restore_s=0, restorable=False)
    first = await stored.claim_unfinished(place.directory, 2, 60)
    second = await stored.claim_unfinished(place.directory, 2, 60)
    assert sorted(each.id for each in first + second) == sorted(each.id for each in made)
    assert await stored.claim_unfinished(place.directory, 2, 60) == []


async def test_a_restorable_database_is_not_dropped_and_a_due_one_cannot_be_restored(place: Place) -> None:
    kept = await databases.create(place.directory, place.organization_id, "kept")
    due = await databases.create(place.directory, place.organization_id, "due")
    await databases.delete(place.directory, kept, restore_s=60, restorable=True)
    await databases.delete(place.directory, due, restore_s=0, restorable=True)
    for database in (kept, due):
        await databases.drop(place.directory, database)
    assert (await databases.restore(place.directory, kept)).state is DatabaseState.READY
    assert (await databases.get(place.directory, due.id)).state is DatabaseState.DELETED
    assert place.agrees()
