"""The progress of a restore at a moment, in bytes of WAL: on a real archive, as the spare cluster replays it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import file_archived_after
from plainsql_server.operations.point_in_time.replay import Replay
from plainsql_server.operations.point_in_time.spare_cluster import spare_cluster_at
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.test_archive_reach import archive_wal, wait_until
from server.tests.operations.test_progress import on_a_terminal
from server.tests.postgres import SUPERUSER

pytestmark = pytest.mark.chaos

_SEGMENT_BYTES = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


class Recorded:
    """The steps of a task, each with its total and what was done."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[int | None, list[int]]] = {}

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:
        assert in_bytes
        self.steps[label] = (total, [])

    def at(self, done: int) -> None:
        self.steps[list(self.steps)[-1]][1].append(done)


def position(admin: psycopg.Connection) -> int:
    (found,) = admin.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone() or (0,)
    return int(found)


def write(cell: ArchivedCell, rows: int) -> None:
    with cell.stage.owner() as owner:
        owner.execute("create table if not exists written (a int, b text)")
        owner.execute("insert into written select g, repeat(md5(g::text), 30) from generate_series(1, %s) g", (rows,))


async def test_the_bytes_of_wal_up_to_the_time_are_counted_as_they_are_replayed(cell: ArchivedCell) -> None:
    with cell.stage.postgres.connect() as admin:
        start = position(admin)
        write(cell, 200_000)
        # If files wait to be archived at the moment, the total is too small.
        archive_wal(admin)
        wait_until(datetime.now(UTC) + timedelta(seconds=2))
        point, at_point = datetime.now(UTC), position(admin)
        archive_wal(admin)
        wait_until(datetime.now(UTC) + timedelta(seconds=2))
        # Later, so it is not replayed, and not counted.
        write(cell, 200_000)
        archive_wal(admin)
    with cell.stage.owner() as owner:
        owner.execute("drop table written")
    progress, archive = Recorded(), Archive(cell.config_folder)
    spare = spare_cluster_at(
        archive, cell.stage.names()[0], SUPERUSER, point, parent=cell.work_folder, progress=progress
    )
    async with spare:
        total, done = progress.steps["replay"]
    assert total is not None
    # The backup began one or two files before.
    assert at_point - start <= total <= at_point - start + 4 * _SEGMENT_BYTES
    assert done == sorted(done)
    assert at_point - start <= done[-1] <= total
    assert len({each for each in done if 0 < each < done[-1]}) > 0, "nothing was reported on the way"


async def test_the_file_of_a_time_is_the_first_that_was_archived_after_it(cell: ArchivedCell) -> None:
    archive, name = Archive(cell.config_folder), ""
    with cell.stage.postgres.connect() as admin:
        for _ in range(2):
            # At the start of a file, the function names the one before.
            admin.execute("select pg_current_xact_id()")
            point = datetime.now(UTC)
            (name,) = admin.execute("select pg_walfile_name(pg_current_wal_insert_lsn())").fetchone() or ("",)
            wait_until(point + timedelta(seconds=2))
            archive_wal(admin)
            wait_until(datetime.now(UTC) + timedelta(seconds=2))
            assert await file_archived_after(archive, point) == name
        # Nothing is archived after this.
        assert await file_archived_after(archive, datetime.now(UTC) + timedelta(days=1)) == name
    assert (await file_archived_after(archive, datetime(2020, 1, 1, tzinfo=UTC)) or "").endswith("01")


def test_the_bar_of_a_restore_shows_a_share_of_the_wal(cell: ArchivedCell) -> None:
    options = cell.options(datetime.now(UTC).isoformat())
    shown = on_a_terminal(cell.stage, "restore", "--org", "acme", "copy", "--from", "main", *options)
    (last,) = [line for line in shown.split("\r\n") if "\x1b[Kreplay " in line]
    assert "░" in last
    assert "100 %" in last


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("LOG:  redo starts at 0/3000028", 0),
        ("LOG:  redo in progress, elapsed time: 0.20 s, current LSN: 0/3000128", 256),
        ("LOG:  redo in progress, elapsed time: 0.20 s, current LSN: 0/03000128", 256),
        ("LOG:  redo done at 0/3000228 system usage: CPU: user: 0.00 s", 512),
        ("LOG:  redo done at 1/3000228 system usage: CPU: user: 0.00 s", 4096),
    ],
)
def test_the_position_is_read_from_the_end_of_the_log(tmp_path: Path, line: str, done: int) -> None:
    log = tmp_path / "log"
    log.write_text("current LSN: 0/3000028\n" * 10_000 + line + "\nFATAL:  not yet accepting connections\n")
    assert Replay(0x3000028, 0x3000028 + 4096, log).done_bytes() == done
