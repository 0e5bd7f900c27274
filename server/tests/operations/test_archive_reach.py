"""A moment that the archive does not reach is refused before anything is restored, with the moments that it reaches."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

_REACHES = re.compile(r"The archive reaches from (\S+Z) to (\S+Z)\.")


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        # As if the database were older than the archive.
        cell.stage.ask("update databases set content_since = '2019-01-01' where name = 'main'")
        # Times in the archive are whole seconds, so its first moment is after the one in which the backup ended.
        wait_until(datetime.now(UTC) + timedelta(seconds=2))
        with cell.stage.postgres.connect() as admin:
            archive_wal(admin)
        yield cell


@contextmanager
def down(cell: ArchivedCell) -> Iterator[None]:
    """The cell is not asked to archive what it has written last."""
    cell.stage.ask("update cells set state = 'down'")
    try:
        yield
    finally:
        cell.stage.ask("update cells set state = 'active'")


def refused(cell: ArchivedCell, point: datetime) -> str:
    options = cell.options(point.isoformat())
    ended = cell.stage.run("restore", "--org", "acme", "never", "--from", "main", *options, exit_code=1)
    assert cell.stage.ask("select from databases where name = 'never'") == []
    assert cell.left_over() == []
    return ended.stderr


def reached(message: str) -> tuple[datetime, datetime]:
    found = _REACHES.search(message)
    assert found is not None, message
    return datetime.fromisoformat(found[1]), datetime.fromisoformat(found[2])


def wait_until(point: datetime) -> None:
    wait_for(lambda: datetime.now(UTC) > point, 10, lambda: "no time passes")


def archive_wal(admin: psycopg.Connection) -> None:
    admin.execute("select pg_current_xact_id()")
    close_wal(admin)


def close_wal(admin: psycopg.Connection) -> None:
    (closed,) = admin.execute("select pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
    archived = "select from pg_stat_archiver where last_archived_wal >= %s"
    wait_for(lambda: admin.execute(archived, (closed,)).rowcount > 0, 30, lambda: "it is not archived")


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (datetime(2099, 1, 1, tzinfo=UTC), "That moment is in the future."),
        (datetime(2020, 1, 1, tzinfo=UTC), "That moment is before the archive's oldest backup."),
    ],
)
def test_a_time_before_the_archive_and_one_in_the_future_are_refused(
    cell: ArchivedCell, point: datetime, reason: str
) -> None:
    message = refused(cell, point)
    assert reason in message
    assert "restore the cell's files" not in message
    first, last = reached(message)
    assert datetime.now(UTC) - timedelta(minutes=5) < first <= last <= datetime.now(UTC)


def test_the_first_time_that_is_named_is_restored_and_the_second_before_it_is_refused(cell: ArchivedCell) -> None:
    first, _ = reached(refused(cell, datetime(2020, 1, 1, tzinfo=UTC)))
    assert "before the archive's oldest backup" in refused(cell, first - timedelta(microseconds=1))
    wait_until(first)
    cell.stage.run("restore", "--org", "acme", "first", "--from", "main", *cell.options(first.isoformat()))
    assert cell.stage.checksums("first") == cell.stage.checksums()
    assert cell.left_over() == []


def test_a_time_later_than_what_is_archived_is_refused(cell: ArchivedCell) -> None:
    with cell.stage.postgres.connect() as admin:
        archive_wal(admin)
    point = datetime.now(UTC) + timedelta(seconds=1)
    wait_until(point)
    with down(cell):
        message = refused(cell, point)
    assert "That moment is later than what is archived." in message
    assert "restore the cell's files" not in message
    assert reached(message)[1] <= point


def test_a_time_after_the_last_archived_transaction_is_refused_with_the_time_of_that(
    cell: ArchivedCell,
) -> None:
    with cell.stage.postgres.connect() as admin:
        # It would commit something later.
        admin.execute("alter system set autovacuum = off")
        admin.execute("select pg_reload_conf()")
        try:
            last = datetime.now(UTC)
            admin.execute("select pg_current_xact_id()")
            point = datetime.now(UTC) + timedelta(milliseconds=500)
            wait_until(point)
            close_wal(admin)
            with down(cell):
                message = refused(cell, point)
        finally:
            admin.execute("alter system reset autovacuum")
            admin.execute("select pg_reload_conf()")
    shown = re.search(r"Its last transaction is of (\S+ \S+)\.", message)
    assert shown is not None, message
    assert last <= datetime.fromisoformat(shown[1]) < point


def test_an_archive_that_cannot_be_read_is_refused_with_the_reason(cell: ArchivedCell) -> None:
    own = cell.config_folder / "conf.d/own.conf"
    own.write_text("[global]\nrepo1-cipher-pass=another\n")
    try:
        message = refused(cell, datetime.now(UTC))
    finally:
        own.unlink()
    assert "pgBackRest can't read the archive" in message
    assert "restore the cell's files" not in message


def test_an_archive_without_a_backup_is_refused(cell: ArchivedCell) -> None:
    own = cell.config_folder / "conf.d/own.conf"
    own.write_text(f"[plainsql]\nrepo1-path={cell.config_folder.parent}/nothing\n")
    try:
        message = refused(cell, datetime.now(UTC))
    finally:
        own.unlink()
    assert "The archive has no backup" in message
