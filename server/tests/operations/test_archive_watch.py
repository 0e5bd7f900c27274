"""What an operator sees of an archive that fails, lags, or has no new backups: on a real archive of a real cell."""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plainsql_server.engine.admin.activity import watching
from plainsql_server.engine.admin.measures import CellMeasures, measure, measure_archiving
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.test_archive_reach import archive_wal, wait_until
from server.tests.operations.upkeep.test_upkeep_metrics import measured
from server.tests.postgres import SUPERUSER
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

_AGE = "cell_archive_backup_age_seconds local"


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


def measures_of(cell: ArchivedCell) -> CellMeasures:
    async def look() -> CellMeasures:
        async with watching(cell.stage.postgres.conninfo, SUPERUSER) as connection:
            return await measure(connection)

    return asyncio.run(look())


def lag_s(cell: ArchivedCell) -> float:
    found = measures_of(cell).archive_lag_s
    assert found is not None
    return found


def metrics_of(cell: ArchivedCell) -> dict[str, float]:
    return asyncio.run(measured(cell.stage, {}))


@contextmanager
def settings(admin: psycopg.Connection, **changed: str) -> Iterator[None]:
    """Settings of the cell for the length of the block."""
    for name, value in changed.items():
        admin.execute(f"alter system set {name} = '{value}'")
    admin.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        for name in changed:
            admin.execute(f"alter system reset {name}")
        admin.execute("select pg_reload_conf()")


async def test_the_lag_of_the_archive_is_measured(cell: ArchivedCell) -> None:
    async with watching(cell.stage.postgres.conninfo, SUPERUSER) as connection:
        await connection.execute("create temp table written as select generate_series(1, 10000)")
        assert ((await measure(connection)).archive_lag_s or 0) > 0
        assert ((await measure_archiving(connection)).archive_lag_s or 0) > 0
        closed = await (await connection.execute("select pg_walfile_name(pg_switch_wal())")).fetchone()
        assert closed is not None
        archived = "select from pg_stat_archiver where last_archived_wal >= %s"
        async with asyncio.timeout(60):
            while not (await connection.execute(archived, (closed[0],))).rowcount:  # noqa: ASYNC110  # a server is watched
                await asyncio.sleep(0.01)
        assert (await measure(connection)).archive_lag_s == 0
        assert (await measure_archiving(connection)).archive_lag_s == 0


def test_an_idle_cell_that_is_written_to_again_does_not_lag_since_it_became_idle(cell: ArchivedCell) -> None:
    with cell.stage.postgres.connect() as admin, settings(admin, archive_timeout="2s", autovacuum="off"):
        since = "select extract(epoch from clock_timestamp() - last_archived_time) from pg_stat_archiver"

        def idle_s() -> float:
            (found,) = admin.execute(since).fetchone() or (0,)
            return float(found)

        # What was written before is archived first.
        wait_for(lambda: lag_s(cell) == 0 and idle_s() > 5, 60, lambda: "the cell does not become idle")
        admin.execute("create temp table written as select generate_series(1, 10000)")
        assert 0 < lag_s(cell) <= 2
        # That of the directory, which is in the same cluster.
        assert 0 < metrics_of(cell)["directory_archive_lag_seconds"] <= 2
        assert idle_s() > 5


def test_an_archive_that_refuses_files_is_reported_with_the_reason_and_until_it_works(cell: ArchivedCell) -> None:
    repository = cell.config_folder.parent / "repository/archive"
    with cell.stage.postgres.connect() as admin:
        archive_wal(admin)
        failed_before = metrics_of(cell)["cell_archiving_failed local"]
        repository.chmod(0o000)
        try:
            admin.execute("select pg_current_xact_id()")
            (closed,) = admin.execute("select pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
            closed_at = datetime.now(UTC)
            wait_for(lambda: measures_of(cell).is_archiving_failing, 60, lambda: "it does not fail")
            # Nothing was archived while the file waited, however long archive_command takes to fail.
            wait_until(closed_at + timedelta(seconds=1))
            failing = measures_of(cell)
            assert (failing.failed_wal, failing.files_to_archive) == (closed, 1)
            # A file is open for 50 seconds at most.
            waited_s = (datetime.now(UTC) - closed_at).total_seconds()
            assert 50 < (failing.archive_lag_s or 0) < waited_s + 52
            found = doctor(cell.stage)
            named = f"It does not archive: archive_command failed for the WAL file {closed}."
            assert_found(found, f"{named} 1 files wait", "archive-push")
            assert_found(found, f"{named} Its disk fills up", "run archive_command by hand")
            # The directory is in the same cluster. Its roles don't see which files wait.
            fixes = {each["check"]: each["fix"] for each in found if "does not archive" in each["found"]}
            assert set(fixes) == {"cell local", "directory"}
            found_metrics = metrics_of(cell)
            assert found_metrics["cell_archiving_failed local"] == 1
            assert found_metrics["directory_archive_lag_seconds"] > 1
            fix = fixes["cell local"]
            assert "Permission denied" in by_hand(fix, returns=None)
        finally:
            repository.chmod(0o750)
        by_hand(fix, returns=0)
        archive_wal(admin)
    assert failed_before == metrics_of(cell)["cell_archiving_failed local"] == 0
    assert_found(doctor(cell.stage), "WAL is archived", "", "good")


def by_hand(fix: str, *, returns: int | None) -> str:
    """What the command in a fix says. None: it must fail."""
    command = shlex.split(fix.split("`")[1])
    if os.geteuid() != 0:
        command = command[command.index("--") + 1 :]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode == 0) == (returns == 0), ended.stderr
    return ended.stdout + ended.stderr


def test_the_age_of_the_last_backup_is_that_of_postgresqls_record(cell: ArchivedCell) -> None:
    cell.back_up("diff")
    found = measures_of(cell)
    assert found.has_archive_backup
    assert 0 <= metrics_of(cell)[_AGE] < 60
    (record,) = (cell.config_folder.parent / "data/pg_wal").glob("*.backup")
    old_s = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    os.utime(record, (old_s, old_s))
    assert 3 * 86_400 <= metrics_of(cell)[_AGE] < 3 * 86_400 + 600
    # On the cell's own machine, pgBackRest is asked.
    assert_found(doctor(cell.stage), "The last backup in its archive is 0 h old.", "", "good")


def test_a_backup_by_another_program_is_none_in_the_archive(cell: ArchivedCell) -> None:
    cell.back_up("diff")
    with cell.stage.postgres.connect() as admin:
        admin.execute("select pg_backup_start('another', true)")
        admin.execute("select pg_backup_stop(true)")

        def is_replaced() -> bool:
            # The record of before is removed when it is archived, by the next backup.
            if not measures_of(cell).has_archive_backup:
                return True
            admin.execute("select pg_backup_start('another', true)")
            admin.execute("select pg_backup_stop(true)")
            return False

        wait_for(is_replaced, 60, lambda: "the record is kept")
    # No backup since then is known, which says nothing of the time before.
    assert 0 <= metrics_of(cell)[_AGE] < 60
    cell.back_up("diff")
    assert measures_of(cell).has_archive_backup


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[plainsql]\nrepo1-path={}/nothing\n", "Its archive has no backup"),
        ("[global]\nrepo1-cipher-pass=another\n", "pgBackRest can't read the archive"),
    ],
)
def test_an_archive_that_is_empty_or_unreadable_is_reported_on_its_machine(
    cell: ArchivedCell, line: str, words: str
) -> None:
    own = cell.config_folder / "conf.d/own.conf"
    own.write_text(line.format(cell.config_folder.parent))
    try:
        found = doctor(cell.stage)
    finally:
        own.unlink()
    (finding,) = [each for each in found if words in each["found"]]
    assert (finding["check"], finding["grade"]) == ("cell local", "broken")
    assert finding["fix"]
