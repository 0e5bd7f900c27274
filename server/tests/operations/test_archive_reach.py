"""A moment that the archive does not reach is refused before anything is restored, with the moments that it reaches."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import psycopg
import pytest

from plainsql_server.cli.progress import Bar
from plainsql_server.control_plane import databases, organizations
from plainsql_server.core.errors import RequestError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.point_in_time import restore_at as restoring
from plainsql_server.operations.point_in_time.child_process import identity
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.received import received_files
from plainsql_server.operations.programs import find_program
from plainsql_server.operations.progress import Progress
from plainsql_server.operations.restore import restore_database
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.debian_machine import give_to_postgres
from server.tests.postgres import SUPERUSER
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


def refused(cell: ArchivedCell, point: datetime | str, *more: str) -> str:
    options = (*cell.options(point if isinstance(point, str) else point.isoformat()), *more)
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


def test_the_latest_is_refused_where_nothing_shows_what_that_is(cell: ArchivedCell, tmp_path: Path) -> None:
    """The cell is lost, and its archive may be behind; so may what was received."""
    tmp_path.chmod(0o755)
    with down(cell):
        alone = refused(cell, "latest")
        empty = refused(cell, "latest", "--received", str(tmp_path))
        (tmp_path / "000000010000000000000001").write_bytes(b"older")
        behind = refused(cell, "latest", "--received", str(tmp_path))
    for message, reason in ((alone, "nothing was received"), (empty, "nothing was received"), (behind, "ends before")):
        assert "can't archive what it wrote last" in message
        assert reason in message
        assert "restore the cell's files" not in message
        assert reached(message)[1] <= datetime.now(UTC)


def test_the_latest_is_restored_and_its_time_is_shown(cell: ArchivedCell) -> None:
    with cell.stage.owner() as owner:
        owner.execute("create table if not exists last (a text)")
        for point, ending in (("latest", "as it was last. Its cell's"), ("archived", "at the end of the archive.")):
            before = datetime.now(UTC)
            owner.execute("insert into last values (%s)", (point,))
            done = cell.stage.run("restore", "--org", "acme", f"as-{point}", "--from", "main", *cell.options(point))
            shown = re.search(r"as it was (.*) last commit.*: (\S+ \S+ UTC)\.$", done.stderr, re.MULTILINE)
            assert shown is not None, done.stderr
            assert ending in f"as it was {shown[1]}"
            # The cell has archived all that it wrote.
            assert "is not there" not in done.stderr
            assert datetime.strptime(f"{shown[2]}", "%Y-%m-%d %H:%M:%S.%f %Z").replace(tzinfo=UTC) > before
            assert cell.stage.checksums(f"as-{point}") == cell.stage.checksums()


@contextmanager
def archiving_histories_alone(cell: ArchivedCell) -> Iterator[None]:
    """The cell can archive no WAL, and what it has archived last is the history of a timeline."""
    pg_wal = cell.config_folder.parent / "data/pg_wal"
    history, ready = pg_wal / "00000009.history", pg_wal / "archive_status/00000009.history.ready"
    with cell.stage.postgres.connect() as admin:
        admin.execute("alter system set archive_command = 'case %f in *.history) exit 0;; esac; exit 1'")
        admin.execute("select pg_reload_conf()")
        try:
            for path in (history, ready):
                path.touch()
                if os.geteuid() == 0:
                    shutil.chown(path, "postgres", "postgres")
            admin.execute("select pg_reload_conf()")
            archived = "select from pg_stat_archiver where last_archived_wal = %s"
            wait_for(lambda: admin.execute(archived, (history.name,)).rowcount > 0, 90, lambda: "it is not archived")
            yield
        finally:
            for path in (history, ready, ready.with_suffix(".done")):
                path.unlink(missing_ok=True)
            admin.execute("alter system reset archive_command")
            admin.execute("select pg_reload_conf()")
            archive_wal(admin)


async def restored_at_the_end(
    cell: ArchivedCell, name: str, *, may_lack_the_last: bool = False, received: Path | None = None,
    progress: Progress | None = None,
) -> DatabaseRecord:  # fmt: skip
    async with Directory.open(cell.stage.dsn) as directory:
        owner = await organizations.get(directory, "acme")
        origin = await databases.get_named(directory, owner.id, "main")

        async def goal(file: BinaryIO, _: int) -> DatabaseRecord:
            return await restore_database(directory, owner.id, name, file, Bar())

        done = await restoring.restore_at(
            directory, origin, None, Archive(cell.config_folder, received=received), goal, folder=cell.work_folder,
            may_lack_the_last=may_lack_the_last, progress=progress or Bar(),
        )  # fmt: skip
        return done.database


def test_the_latest_is_refused_if_the_cell_can_not_archive_what_it_wrote_last(
    cell: ArchivedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "_ARCHIVED_WITHIN_S", 1.0)
    with cell.stage.owner() as owner, cell.stage.postgres.connect() as admin:
        owner.execute("create table unarchived as select 'archived' as a")
        archive_wal(admin)
        with archiving_histories_alone(cell):
            owner.execute("insert into unarchived values ('later')")
            with pytest.raises(RequestError, match="can't archive what it wrote last"):
                asyncio.run(restored_at_the_end(cell, "never"))
            asyncio.run(restored_at_the_end(cell, "archived", may_lack_the_last=True))
        owner.execute("drop table unarchived")
    with cell.stage.owner("archived") as owner:
        assert owner.execute("select a from unarchived").fetchall() == [("archived",)]
    assert cell.left_over() == []


@pytest.fixture
def received(cell: ArchivedCell) -> Iterator[Path]:
    """A folder for what is received from the cell, which admits receivers on its socket."""
    folder = cell.config_folder.parent / "received"
    folder.mkdir()
    give_to_postgres(folder)
    with cell.stage.postgres.connect() as admin:
        ((hba,),) = admin.execute("show hba_file").fetchall()
        text = Path(hba).read_text()
        Path(hba).write_text(f"local replication all trust\n{text}")
        admin.execute("select pg_reload_conf()")
        try:
            yield folder
        finally:
            Path(hba).write_text(text)
            admin.execute("select pg_reload_conf()")
            shutil.rmtree(folder)


@contextmanager
def receiving(cell: ArchivedCell, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """It receives from the file that is current at first, or after what it has."""
    command = (find_program("pg_receivewal", 15), f"--directory={folder}", "--status-interval=1")
    where = ("--host", cell.stage.postgres.socket_dir, "--username", SUPERUSER)
    receiver = subprocess.Popen([*command, *where], cwd="/", **identity())
    try:
        wait_for(lambda: receiver.poll() is not None or any(folder.iterdir()), 30, lambda: "nothing is received")
        yield receiver
    finally:
        receiver.terminate()
        receiver.wait(30)


class LosingReceived:
    """A `Progress` that loses what was received last when the restore begins."""

    def __init__(self, folder: Path, receiver: "subprocess.Popen[bytes]") -> None:
        self._folder, self._receiver = folder, receiver

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        if label == "restore the cell's files":
            self._receiver.terminate()
            self._receiver.wait(30)
            *_, newest = [file for file in received_files(self._folder) if file.is_complete]
            for file in received_files(self._folder):
                if file.name >= newest.name:
                    file.path.unlink()

    def at(self, done: int) -> None:
        pass


def test_old_content_is_not_restored_if_the_archive_and_the_receiver_have_stopped_together(
    cell: ArchivedCell, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell runs, and says where its WAL ends. What was received is as new as the archive."""
    monkeypatch.setattr(restoring, "_ARCHIVED_WITHIN_S", 1.0)
    monkeypatch.setattr(restoring, "_RECEIVED_WITHIN_S", 1.0)

    def received_last(may_lose: "subprocess.Popen[bytes] | None" = None) -> DatabaseRecord:
        progress = LosingReceived(received, may_lose) if may_lose is not None else None
        return asyncio.run(restored_at_the_end(cell, "received", received=received, progress=progress))

    def complete() -> set[str]:
        return {file.name for file in received_files(received) if file.is_complete}

    with cell.stage.owner() as owner, cell.stage.postgres.connect() as admin:
        owner.execute("create table unreceived as select 'received' as a")
        with receiving(cell, received):
            archive_wal(admin)
            wait_for(lambda: complete() != set(), 30, lambda: "nothing is received")
        with archiving_histories_alone(cell):
            owner.execute("insert into unreceived values ('later')")
            with pytest.raises(RequestError, match="what was received ends before that, so nothing has its WAL up to"):
                received_last()
            monkeypatch.setattr(restoring, "_RECEIVED_WITHIN_S", 30.0)
            with (
                receiving(cell, received) as receiver,
                pytest.raises(RequestError, match="and the cell has written it up to"),
            ):
                received_last(receiver)
            assert cell.left_over() == []
            with receiving(cell, received):
                received_last()
        owner.execute("drop table unreceived")
    with cell.stage.owner("received") as owner:
        assert owner.execute("select a from unreceived order by a").fetchall() == [("later",), ("received",)]


def restored_of_a_lost_cell(cell: ArchivedCell, name: str, point: str, *more: str) -> str:
    """What the command says. What it restores is then stored on the same cell."""
    options = (*cell.options(point), *more)
    with down(cell):
        command = ("restore", "--org", "acme", name, "--from", "main", *options)
        with cell.stage.start(*command, stderr=subprocess.PIPE) as restoring:
            assert restoring.stderr is not None
            output = b""
            for line in restoring.stderr:
                output += line
                if b"restore the cell's files" in line:
                    cell.stage.ask("update cells set state = 'active'")
        assert restoring.returncode == 0, output
    return output.decode()


def test_of_a_lost_cell_the_end_of_what_was_received_is_shown_or_that_something_may_be_missing(
    cell: ArchivedCell, received: Path
) -> None:
    output = restored_of_a_lost_cell(cell, "lost-archived", "archived")
    assert "may have committed later is not there. If its WAL was received, add --received." in output
    before = datetime.now(UTC)
    with receiving(cell, received), cell.stage.postgres.connect() as admin:
        archive_wal(admin)
        wait_for(lambda: any(each.is_complete for each in received_files(received)), 30, lambda: "nothing is received")
        output = restored_of_a_lost_cell(cell, "lost-latest", "latest", "--received", str(received))
    shown = re.search(r"All that was received until (\S+ \S+) UTC is there\. What the cell acknowledged after", output)
    assert shown is not None, output
    assert before < datetime.fromisoformat(f"{shown[1]}+00:00") < datetime.now(UTC)
