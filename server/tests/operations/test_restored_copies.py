"""Branches that were made after the last backup by copying files are restored: their content isn't in the WAL."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import find_by_id
from plainsql_server.operations.point_in_time.copied_from import copied_from
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.stage import Stage

pytestmark = pytest.mark.chaos

# Larger databases are copied by files.
_WAL_LOG_BYTES = 64 * 1024 * 1024
_LARGE = "create table large as select g, repeat(md5(g::text), 60) as a from generate_series(1, 50000) g"
_ADDED = "create table {} as select g, md5(g::text) as a from generate_series(1, 1000) g"


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    """A large database is in the backup, with a branch and a branch of that which are not."""
    with archived_cell() as cell:
        stage = cell.stage
        stage.run("database", "create", "--org", "acme", "grandparent")
        stage.run("org", "create", "others")
        stage.run("database", "create", "--org", "others", "beside")
        with stage.owner("grandparent") as owner:
            owner.execute(_LARGE)
        cell.back_up("diff")
        for parent, branch in (("grandparent", "parent"), ("parent", "branch")):
            with stage.owner(parent) as owner:
                owner.execute(_ADDED.format(f"in_{parent}").encode())
            stage.run("database", "branch", "--org", "acme", parent, branch)
        with stage.owner("branch") as owner:
            owner.execute("update large set a = 'changed' where g % 100 = 0")
        with stage.admin("grandparent") as admin:
            size = "select pg_database_size(current_database())"
            assert (admin.execute(size).fetchone() or (0,))[0] > _WAL_LOG_BYTES
        yield cell


def is_restored(cell: ArchivedCell, name: str, point: datetime) -> None:
    made = cell.stage.run(
        "restore", "--org", "acme", f"{name}-then", "--from", name, *cell.options(point.isoformat())
    ).stdout.strip()
    assert cell.stage.checksums(f"{name}-then") == cell.stage.checksums(name)
    assert cell.left_over() == []
    cell.stage.run("database", "delete", made, "--permanently", "--yes")


def record_of(stage: Stage, name: str) -> tuple[str, str]:
    ((database_id, engine_name),) = stage.ask("select id, engine_name from databases where name = %s", name)
    return database_id, engine_name


async def sources(cell: ArchivedCell, name: str, point: datetime) -> set[str]:
    async with Directory.open(cell.stage.dsn) as directory:
        origin = await find_by_id(directory, record_of(cell.stage, name)[0])
        assert origin is not None
        return set(await copied_from(directory, origin, Archive(cell.config_folder), point))


async def test_the_databases_that_it_was_copied_from_are_restored_with_it(cell: ArchivedCell) -> None:
    point = datetime.now(UTC)
    assert await sources(cell, "main", point) == set()
    # The parent is not in the backup, and comes from the WAL.
    _, grandparent = record_of(cell.stage, "grandparent")
    assert await sources(cell, "branch", point) == {grandparent}


def test_it_has_the_content_of_that_time(cell: ArchivedCell) -> None:
    point = datetime.now(UTC)
    is_restored(cell, "branch", point)
    is_restored(cell, "parent", point)


async def test_it_is_restored_although_its_parents_content_was_replaced_and_deleted(cell: ArchivedCell) -> None:
    """The last one: what it deletes, the others need."""
    stage = cell.stage
    grandparent_id, copied = record_of(stage, "grandparent")
    point = datetime.now(UTC)
    stage.run("restore", "--org", "acme", "grandparent", "--replace", *cell.options(point.isoformat()))
    ((replaced_id,),) = stage.ask("select id from databases where engine_name = %s", copied)
    assert replaced_id != grandparent_id
    point = datetime.now(UTC)
    for each in (grandparent_id, replaced_id):
        stage.run("database", "delete", each, "--permanently", "--yes")
    found = await sources(cell, "branch", point)
    assert copied in found
    assert record_of(stage, "beside")[1] not in found
    is_restored(cell, "branch", point)
