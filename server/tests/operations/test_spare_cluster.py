"""A spare cluster: what it says of damage and of lasting errors, and what a taken-over cell can't make it do."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.cli.progress import Bar
from plainsql_server.control_plane import databases, organizations
from plainsql_server.core.errors import RequestError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.point_in_time import free_space
from plainsql_server.operations.point_in_time.damage import damaged_files
from plainsql_server.operations.point_in_time.free_space import check_space_for_received
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.received import place_received
from plainsql_server.operations.point_in_time.replay import planned_replay
from plainsql_server.operations.point_in_time.restore_at import restore_at
from plainsql_server.operations.point_in_time.spare_cluster import spare_cluster_at
from plainsql_server.operations.point_in_time.spare_folder import SpareFolder, remove_abandoned, spare_folder
from plainsql_server.operations.restore import restore_database
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.debian_machine import give_to_postgres
from server.tests.operations.test_archive_reach import archive_wal
from server.tests.postgres import SUPERUSER, run_as_postgres
from server.tests.run_folder import run_folder
from server.tests.small_disks import may_mount, small_disk

_PAGE_BYTES = 8192
# So much stays free at least; the copies of another database need more than the rest.
_FREE_BYTES, _REST_BYTES = 1024**3, 288 * 1024**2
_COPIES, _COPIED_ROWS = 6, 60_000


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


@pytest.mark.chaos
async def test_what_can_not_be_logged_in_to_is_refused_with_what_postgresql_says(cell: ArchivedCell) -> None:
    """As at a moment before the role was created."""
    point = datetime.now(UTC)
    with cell.stage.postgres.connect() as admin:
        archive_wal(admin)
    spare = spare_cluster_at(
        Archive(cell.config_folder), cell.stage.names()[0], "nobody_yet", point, parent=cell.work_folder, progress=Bar()
    )
    with pytest.raises(RequestError, match='role "nobody_yet" does not exist'):
        async with spare:
            pass
    assert cell.left_over() == []


@pytest.mark.chaos
def test_a_database_whose_pages_the_backup_does_not_have_is_not_restored(cell: ArchivedCell) -> None:
    stage = cell.stage
    stage.run("database", "create", "--org", "acme", "damaged")
    with stage.owner("damaged") as owner:
        owner.execute("create table t (a text) with (autovacuum_enabled = false)")
        owner.execute("insert into t values ('kept')")
        (file,) = owner.execute("select pg_relation_filepath('t')").fetchone() or ("",)
    with stage.postgres.connect() as admin:
        admin.execute("checkpoint")
        # The disk loses a page that PostgreSQL still has in memory.
        with (cell.config_folder.parent / "data" / file).open("r+b") as damaged:
            assert len(damaged.read()) == _PAGE_BYTES
            damaged.seek(0)
            damaged.write(bytes(_PAGE_BYTES))
        cell.back_up()
        try:
            # Otherwise, the first change after a backup stores the whole page in the WAL.
            admin.execute("alter system set full_page_writes = off")
            admin.execute("select pg_reload_conf()")
            with stage.owner("damaged") as owner:
                owner.execute("insert into t values ('later')")
            options = cell.options(datetime.now(UTC).isoformat())
            refused = stage.run("restore", "--org", "acme", "never", "--from", "damaged", *options, exit_code=1)
        finally:
            admin.execute("alter system reset full_page_writes")
            admin.execute("select pg_reload_conf()")
    assert "The database is damaged in the archive" in refused.stderr
    assert f"1 of {file}." in refused.stderr
    # Pages of other databases are always missing.
    stage.run("restore", "--org", "acme", "whole", "--from", "main", *options)
    assert stage.checksums("whole") == stage.checksums()
    assert cell.left_over() == []


class Steps:
    """A `Progress` that keeps the names of the steps."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        self.names.append(label)

    def at(self, done: int) -> None:
        pass


@pytest.mark.chaos
@pytest.mark.skipif(not may_mount(), reason="only root may mount a small disk, and not everywhere")
async def test_a_replay_that_fills_the_disk_ends_and_leaves_nothing(cell: ArchivedCell) -> None:
    """By copies of another customer's database: the WAL says only that its files are copied, and empty ones are."""
    copies, steps = [f"copy_{number}" for number in range(_COPIES)], Steps()
    with cell.stage.postgres.connect() as admin:
        admin.execute("create database large")
        with cell.stage.postgres.connect(database="large") as large:
            large.execute("create table t as select repeat('x', 900) from generate_series(1, %s)", (_COPIED_ROWS,))
        try:
            cell.back_up("diff")
            for name in copies:
                admin.execute(f"create database {name} template large strategy file_copy".encode())
            (bytes_,) = admin.execute("select pg_database_size('large')").fetchone() or (0,)
            assert bytes_ * _COPIES > _REST_BYTES
            point = datetime.now(UTC)
            archive_wal(admin)
        finally:
            for name in (*copies, "large"):
                admin.execute(f"drop database if exists {name}".encode())
    with small_disk(_FREE_BYTES + _REST_BYTES, run_folder()) as disk:
        spare = spare_cluster_at(
            Archive(cell.config_folder), cell.stage.names()[0], SUPERUSER, point, parent=disk, free_ratio=0,
            progress=steps,
        )  # fmt: skip
        with pytest.raises(RequestError, match=f"of the disk of {disk} are free, and {_FREE_BYTES:,} must stay free"):
            async with spare:
                pass
        assert steps.names[-1] == "replay"
        assert list(disk.iterdir()) == []


@pytest.mark.chaos
async def test_a_full_disk_ends_nothing_once_the_spare_cluster_is_removed(
    cell: ArchivedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content may have been replaced, and an error would say that nothing has changed."""
    async with Directory.open(cell.stage.dsn) as directory:
        owner = await organizations.get(directory, "acme")
        origin = await databases.get_named(directory, owner.id, "main")

        async def goal(file: BinaryIO, _: int) -> DatabaseRecord:
            assert cell.left_over() == []
            monkeypatch.setattr(free_space, "_FREE_LEAST_BYTES", 2**60)
            return await restore_database(directory, owner.id, "on-full-disk", file, Bar())

        archive = Archive(cell.config_folder)
        await restore_at(directory, origin, None, archive, goal, folder=cell.work_folder, progress=Bar())
    assert cell.stage.checksums("on-full-disk") == cell.stage.checksums()


@pytest.mark.chaos
async def test_received_wal_for_which_there_is_no_room_is_refused_before_it_is_copied(
    cell: ArchivedCell, parent: Path
) -> None:
    received, pg_wal = parent / "received", parent / "pg_wal"
    for folder in (received, pg_wal):
        folder.mkdir()
    with (received / "0000000100000FFF000000FF.partial").open("wb") as file:
        # None of it is on the disk.
        file.truncate(shutil.disk_usage(parent).free)
    with pytest.raises(RequestError, match="bytes of received WAL takes"):
        await place_received(
            received, Archive(cell.config_folder), pg_wal, lambda bytes_: check_space_for_received(parent, bytes_, 0)
        )
    assert list(pg_wal.iterdir()) == []


@pytest.mark.chaos
def test_received_wal_is_placed_in_a_new_cell_whatever_stays_free_on_its_disk(
    cell: ArchivedCell, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, data = parent / "received", parent / "data"
    received.mkdir()
    (data / "pg_wal").mkdir(parents=True)
    (data / "recovery.signal").touch()
    for path in (received, data / "pg_wal"):
        give_to_postgres(path)
    file = received / "0000000100000FFF000000FF"
    file.write_bytes(b"received")
    give_to_postgres(file)
    place = ["wal", "place", str(received), "--archive", str(cell.config_folder), "--data-folder", str(data)]
    monkeypatch.setattr(free_space, "_FREE_LEAST_BYTES", 2**60)
    assert CliRunner().invoke(main, place).exit_code == 0
    assert (data / "pg_wal" / file.name).read_bytes() == b"received"
    with file.open("r+b") as larger:
        # None of it is on the disk.
        larger.truncate(2 * shutil.disk_usage(parent).free)
    refused = CliRunner().invoke(main, place)
    assert refused.exit_code == 1
    assert "bytes are free there. Make room there" in refused.output
    assert not re.search("--work-folder|--free-percent|stay free", refused.output)


def test_damage_is_that_of_the_database_and_of_shared_catalogs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "LOG:  redo starts at 0/3000028\n"
        "WARNING:  page 3 of relation base/16400/16900 is uninitialized\n"
        "CONTEXT:  WAL redo at 0/3000128 for Heap/INSERT: off 2 flags 0x00\n"
        "WARNING:  WAL contains references to invalid pages\n"
        "WARNING:  page 3 of relation base/16400/16900 is uninitialized\n"
        "WARNING:  page 4 of relation base/16400/16900 does not exist\n"
        "WARNING:  page 0 of relation pg_tblspc/16500/PG_15_202209061/16400/16901_vm does not exist\n"
        "WARNING:  page 0 of relation global/1260 is uninitialized\n"
        "WARNING:  page 0 of relation base/1/16400 is uninitialized\n"
        "WARNING:  page 0 of relation base/164001/16900 is uninitialized\n"
    )
    assert damaged_files(log, {16400, 7}) == {
        "base/16400/16900": 2, "global/1260": 1, "pg_tblspc/16500/PG_15_202209061/16400/16901_vm": 1,
    }  # fmt: skip
    assert damaged_files(log, {99}) == {"global/1260": 1}


async def test_a_restore_goes_on_if_its_length_can_not_be_estimated(
    parent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with spare_folder(parent) as folder:
        with folder.opened_log() as log:
            log.write(b"LOG:  redo in progress, elapsed time: 0.20 s, current LSN: 0/3000128\n")
        # There is no backup, and no archive.
        replay = await planned_replay(Archive(parent / "none"), datetime.now(UTC), folder, _PAGE_BYTES)
        assert (replay.total_bytes, replay.done_bytes()) == (None, 0)
    assert "How much WAL has to be replayed is unknown" in caplog.text


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A data folder with which a spare cluster must do nothing."""
    folder = tmp_path / "victim"
    # Whether PostgreSQL's user could enter it does not matter.
    (folder / "data/pg_tblspc").mkdir(parents=True)
    (folder / "data/PG_VERSION").write_text("15")
    (folder / "log").write_text("kept")
    return folder


@pytest.fixture
def parent() -> Iterator[Path]:
    """A folder that PostgreSQL's user can enter, with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="s", dir=run_folder()) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def is_untouched(victim: Path) -> bool:
    return (
        (victim / "data/pg_tblspc").stat().st_mode & 0o777 == 0o755
        and (victim / "data/PG_VERSION").read_text() == "15"
        and (victim / "log").read_text() == "kept"
    )


def plant(folder: SpareFolder, victim: Path, replaced: str) -> None:
    """As PostgreSQL's user: a link in place of the data folder, or of something in it."""
    run_as_postgres("mkdir", "-p", str(folder.data / "pg_tblspc"))
    run_as_postgres("rm", "-rf", str(folder.cluster / replaced))
    run_as_postgres("ln", "-s", str(victim / replaced), str(folder.cluster / replaced))


@pytest.mark.parametrize("replaced", ["data", "data/pg_tblspc", "data/PG_VERSION"])
def test_a_link_in_the_clusters_folder_is_not_followed(parent: Path, victim: Path, replaced: str) -> None:
    with spare_folder(parent) as folder:
        plant(folder, victim, replaced)
        if replaced != "data/PG_VERSION":
            with pytest.raises(OSError, match=r"data|pg_tblspc"):
                folder.allow_tablespaces(False)
        if replaced != "data/pg_tblspc":
            with pytest.raises(OSError, match=r"data|PG_VERSION"):
                folder.read("PG_VERSION")
    assert is_untouched(victim)
    assert list(parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="all files belong to the same user unless root makes them")
@pytest.mark.parametrize("name", ["log", "pg_hba.conf"])
def test_postgresqls_user_can_not_write_where_this_process_does(parent: Path, victim: Path, name: str) -> None:
    with spare_folder(parent) as folder:
        with pytest.raises(subprocess.CalledProcessError):
            run_as_postgres("ln", "-s", str(victim / "log"), str(folder.path / name))
        with pytest.raises(subprocess.CalledProcessError):
            run_as_postgres("mv", str(folder.cluster), str(folder.path / "moved"))
        # Were it possible, it would be refused.
        (folder.path / name).symlink_to(victim / "log")
        with pytest.raises(FileExistsError):
            folder.write(name, "overwritten")
    assert is_untouched(victim)


@pytest.mark.parametrize("replaced", ["pg", "pg/data", "pg/data/pg_tblspc", "data"])
def test_links_in_a_folder_that_was_left_behind_are_not_followed(parent: Path, victim: Path, replaced: str) -> None:
    left = parent / "plainsql-spare-old"
    link = left / replaced
    link.parent.mkdir(parents=True)
    link.symlink_to(victim / replaced.removeprefix("pg").lstrip("/"))
    if os.geteuid() == 0:
        for path in (left, *left.rglob("*")):
            if not path.is_symlink():
                shutil.chown(path, "postgres")
    remove_abandoned(parent)
    assert list(parent.iterdir()) == []
    assert is_untouched(victim)
