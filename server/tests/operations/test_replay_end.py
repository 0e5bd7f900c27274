"""`wal check`: a restored cluster that was opened before the end of its archive, or of what was received, is noticed.

Nothing that was received is archived then. With real restores; the rules for names are tested without. That it archives
what was received otherwise, `test_streamed_cell.py` shows.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from plainsql_server.cli import main
from plainsql_server.core.errors import RequestError
from plainsql_server.operations.point_in_time.received import ReceivedEnd
from plainsql_server.operations.point_in_time.replay_end import ReplayEnd, check_reached, lacking_file
from plainsql_server.operations.programs import find_program
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.debian_machine import give_to_postgres
from server.tests.operations.test_archive_gaps import current_file, without
from server.tests.operations.test_archive_reach import archive_wal
from server.tests.postgres import SUPERUSER, run_as_postgres
from server.tests.processes import wait_for

_FILE_BYTES = 16 * 1024**2
_PORT = 5433


def replay(*ends: tuple[int, float]) -> ReplayEnd:
    """A replay that followed these timelines, each up to the start of this file, or with a half, to its middle."""
    ancestors = {timeline: int(number * _FILE_BYTES) for timeline, number in ends}
    return ReplayEnd(ancestors, _FILE_BYTES, Path("/data"), "")


def names(timeline: int, *numbers: int) -> list[str]:
    return [f"{timeline:08X}{number // 256:08X}{number % 256:08X}" for number in numbers]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("ended", "has", "later", "lacking"),
    [
        # All is replayed; what the restored cluster has written itself is no part of it.
        (replay((1, 8)), [*names(1, 6, 7), *names(2, 7, 8, 9)], False, None),
        # A file is missing in the archive, before the newest one. Its number is that of another part of 4 GB.
        (replay((1, 255)), names(1, 254, 256, 257), True, "0000000100000000000000FF"),
        (replay((1, 256)), [*names(1, 255, 257), *names(2, 256)], True, "000000010000000100000000"),
        # None is missing, so one is damaged.
        (replay((1, 8)), names(1, 7, 8, 9), True, None),
        # A timeline that was left at its file 5, and has later files, which are no part of the history.
        (replay((1, 5), (2, 8)), [*names(1, 4, 5, 6, 9, 10), *names(2, 5, 6, 7)], False, None),
        # So they are not later than a damaged one, and don't stand for one that is missing.
        (replay((1, 5), (2, 8)), [*names(1, 4, 5, 12), *names(2, 5, 6, 7, 8, 9)], True, None),
        (replay((1, 5), (2, 8)), [*names(1, 4, 5, 8, 9), *names(2, 5, 6, 7, 9)], True, "000000020000000000000008"),
        # It ended in the middle of a file, which is there.
        (replay((1, 8.5)), names(1, 8, 9), True, None),
        (replay((1, 8.5)), names(1, 8, 10), True, "000000010000000000000009"),
        # The last timeline was to be followed from the file 9 of the one before, and has no file.
        (replay((1, 9), (2, 5)), names(1, 4, 6, 7), True, "000000020000000000000005"),
    ],
)
def test_files_that_are_later_than_the_replay_are_found(
    ended: ReplayEnd, has: list[str], later: bool, lacking: str | None
) -> None:
    assert any(map(ended.has_later, has)) is later
    if later:
        assert lacking_file(ended, has) == lacking


@pytest.mark.unit
@pytest.mark.parametrize(
    ("replayed", "timeline", "record", "refused"),
    [
        (replay((1, 8)), 1, 7.5, None),
        (replay((1, 8)), 1, 8, "Something between the two is missing"),
        # After a failover of the lost cell. What was received is of the later one, or the receiver was away since.
        (replay((1, 5), (2, 8)), 2, 7.5, None),
        (replay((1, 5), (2, 8)), 1, 4.5, None),
        # The first restore ended at 5, and wrote up to 8; the lost cell had written more.
        (replay((1, 5), (2, 8)), 1, 5.5, "the replay left at 0/5000000"),
        (replay((1, 5), (2, 8)), 1, 8.5, "the replay left at 0/5000000"),
        # It was to leave the first one at 9, and ended before.
        (replay((1, 9), (2, 5)), 1, 4.5, None),
        (replay((1, 9), (2, 5)), 1, 6.5, "Something between the two is missing"),
        (replay((1, 8)), 2, 4.5, "the replay did not follow"),
    ],
)
def test_the_last_record_that_was_received_counts_on_its_own_timeline(
    replayed: ReplayEnd, timeline: int, record: float, refused: str | None
) -> None:
    end = ReceivedEnd(timeline, int(record * _FILE_BYTES), None, datetime.now(UTC))
    if refused is None:
        check_reached(replayed, end)
    else:
        with pytest.raises(RequestError, match=refused) as raised:
            check_reached(replayed, end)
        assert (f"--target-timeline=0x{timeline:08X}" in (raised.value.hint or "")) is ("the replay" in refused)


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


@contextmanager
def restored(cell: ArchivedCell, received: Path) -> Iterator[Path]:
    """A cluster that was restored from the archive and what was received, and its folder, which has its socket."""
    folder = cell.work_folder / "restored"
    folder.mkdir()
    give_to_postgres(folder)
    data = folder / "data"
    cell.pgbackrest(f"--pg1-path={data}", "restore")
    placed = run("place", str(received), "--archive", str(cell.config_folder), "--data-folder", str(data))
    assert placed.exit_code == 0, placed.output
    own = f"unix_socket_directories = '{folder}'\nport = {_PORT}\narchive_mode = off\n"
    conf = data / "postgresql.conf"
    conf.write_text(conf.read_text() + own)
    pg_ctl = find_program("pg_ctl", 15)
    run_as_postgres(pg_ctl, "-D", data, "-l", folder / "log", "-w", "start")
    try:
        with psycopg.connect(f"host={folder} port={_PORT} user={SUPERUSER} dbname=postgres", autocommit=True) as admin:
            opened = "select where not pg_is_in_recovery()"
            wait_for(lambda: admin.execute(opened).rowcount == 1, 60, (folder / "log").read_text)
        yield folder
    finally:
        run_as_postgres(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["wal", *words])


def check(cell: ArchivedCell, received: Path, folder: Path) -> Result:
    where = ("--socket-directory", str(folder), "--port", str(_PORT), "--admin-role", SUPERUSER)
    return run("check", str(received), "--archive", str(cell.config_folder), *where)


def archived(cell: ArchivedCell, name: str) -> bool:
    return any(cell.config_folder.parent.glob(f"repository/archive/plainsql/*/*/{name}-*"))


@pytest.mark.chaos
def test_nothing_is_archived_unless_all_was_replayed(cell: ArchivedCell) -> None:
    """Of six files, the first two and the fifth were received."""
    wal, received = cell.config_folder.parent / "data/pg_wal", cell.config_folder.parent / "received"
    received.mkdir()
    with cell.stage.postgres.connect() as admin:
        admin.execute("select pg_create_physical_replication_slot('kept', true)")
        files = []
        for _ in range(6):
            files.append(current_file(admin))
            archive_wal(admin)
        for name in (*files[:2], files[4]):
            shutil.copy(wal / name, received / name)
        admin.execute("select pg_drop_replication_slot('kept')")
    for path in (received, *received.iterdir()):
        give_to_postgres(path)
    # The archive lacks a file after the last one that was received, and has a later one.
    (received / files[4]).rename(cell.config_folder.parent / files[4])
    with without(cell, files[4]), restored(cell, received) as folder:
        ended = check(cell, received, folder)
        assert (ended.exit_code, f"has the file {files[4]}" in ended.output) == (1, True), ended.output
    # It lacks two files, one of which was received: a gap between the two.
    (cell.config_folder.parent / files[4]).rename(received / files[4])
    with without(cell, files[5]), without(cell, files[4]), without(cell, files[3]), restored(cell, received) as folder:
        ended = check(cell, received, folder)
        assert (ended.exit_code, f"has the file {files[3]}" in ended.output) == (1, True), ended.output
        assert not archived(cell, files[4])
