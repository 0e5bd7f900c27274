"""An archive that lacks a file of the WAL in the middle: what is missing is named, and is not taken for the end."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plainsql_server.operations.point_in_time.child_process import identity
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.backups_guide import listed, section
from server.tests.operations.lost_site import check_verified
from server.tests.operations.test_archive_reach import archive_wal, wait_until

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        cell.stage.ask("update databases set content_since = '2019-01-01' where name = 'main'")
        wait_until(datetime.now(UTC) + timedelta(seconds=2))
        yield cell


def current_file(admin: psycopg.Connection) -> str:
    # At the start of a file, the function names the one before.
    admin.execute("select pg_current_xact_id()")
    ((name,),) = admin.execute("select pg_walfile_name(pg_current_wal_insert_lsn())").fetchall()
    return str(name)


def first_file(cell: ArchivedCell) -> str:
    """With which the newest backup begins: its record in the archive is named after it."""
    *_, record = sorted(cell.config_folder.parent.glob("repository/archive/plainsql/*/*/*.backup"))
    return record.name[:24]


@contextmanager
def without(cell: ArchivedCell, name: str) -> Iterator[None]:
    """The archive does not have this file of the WAL."""
    (file,) = cell.config_folder.parent.glob(f"repository/archive/plainsql/*/*/{name}-*")
    elsewhere = cell.config_folder.with_name(file.name)
    file.rename(elsewhere)
    try:
        yield
    finally:
        shutil.move(elsewhere, file)


def failure(cell: ArchivedCell, point: datetime) -> str:
    options = cell.options(point.isoformat())
    ended = cell.stage.run("restore", "--org", "acme", "never", "--from", "main", *options, exit_code=1)
    assert cell.left_over() == []
    return ended.stderr.splitlines()[-1]


def test_a_file_that_is_missing_in_the_middle_is_named(cell: ArchivedCell) -> None:
    with cell.stage.postgres.connect() as admin:
        before = datetime.now(UTC)
        archive_wal(admin)
        name = current_file(admin)
        archive_wal(admin)
        archive_wal(admin)
    point = datetime.now(UTC)
    with without(cell, name):
        message = failure(cell, point)
        assert f"The archive lacks the file {name} of the WAL, and has later ones." in message
        assert "does not reach" not in message
        # What is before it can be restored.
        cell.stage.run("restore", "--org", "acme", "before", "--from", "main", *cell.options(before.isoformat()))
    cell.stage.run("restore", "--org", "acme", "after", "--from", "main", *cell.options(point.isoformat()))


def test_a_backup_whose_first_file_is_missing_says_so(cell: ArchivedCell) -> None:
    with cell.stage.postgres.connect() as admin:
        archive_wal(admin)
    point, name = datetime.now(UTC), first_file(cell)
    with without(cell, name):
        assert f"The archive lacks the file {name} of the WAL" in failure(cell, point)


def test_verify_shows_a_gap_as_the_guide_says(cell: ArchivedCell) -> None:
    with cell.stage.postgres.connect() as admin:
        archive_wal(admin)
        name = current_file(admin)
        archive_wal(admin)
        archive_wal(admin)
    check_verified(verified(cell))
    with without(cell, name), pytest.raises(AssertionError):
        check_verified(verified(cell))


def verified(cell: ArchivedCell) -> str:
    """What the guide's command prints."""
    (command,) = [line for line in listed(section("Restore a lost cell")) if line.endswith(" verify")]
    _, words = command.replace("/etc/postgresql/15/main/pgbackrest", str(cell.config_folder)).split(" -- ")
    output: bytes = subprocess.check_output(words.split(), cwd="/", **identity())
    return output.decode()
