"""Doctor's checks of a cell's archive, on measures of our own. `test_archive_watch.py` has a real archive."""

import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.engine.admin.measures import CellMeasures, archive_backup_age_s
from plainsql_server.operations.files.archive import ArchiveConfig
from plainsql_server.operations.findings import Grade
from plainsql_server.operations.upkeep import cell_archive
from server.tests.operations.upkeep.test_cell_upkeep import HEALTHY, grades

pytestmark = pytest.mark.unit

ARCHIVED = replace(HEALTHY, has_pgbackrest=True, archive_lag_s=12.0, has_archive_backup=True, archive_backup_age_s=60.0)
COMMAND = ArchiveConfig("/archive", "/etc/the cell/pgbackrest", "admin", "/data", "/run").settings()["archive_command"]
ADDED_AT = datetime.now(UTC) - timedelta(days=10)
CELL = CellRecord("c_1", "eu-1", "host=db", "admin", CellState.ACTIVE, ADDED_AT, None, 100, None, None)


def test_archiving_that_fails_or_is_missing_is_reported() -> None:
    def found(measures: CellMeasures) -> list[Grade]:
        return grades([*cell_archive.archiving("cell", {}, measures)])

    assert found(HEALTHY) == [Grade.GOOD]
    assert found(replace(HEALTHY, is_archiving_failing=True)) == [Grade.BROKEN]
    assert found(replace(HEALTHY, archive_lag_s=61.0)) == [Grade.WARNING]
    assert found(replace(HEALTHY, is_archiving=False)) == [Grade.WARNING]
    assert found(replace(HEALTHY, is_archiving=False, standbys=1)) == []


@pytest.mark.parametrize("command", [
    "PGPASSWORD=hunter2 push %p", "curl -u x -H 'Authorization: token: abc' %p", "push --password abc %p",
    "curl -T %p https://backup:hunter2@vault/%f", "AWS_SECRET_ACCESS_KEY=x aws s3 cp %p s3://b/%f",
    "aws --key AKIAIOSFODNN7EXAMPLE %p", "push --token=abc %p", "push --api-key=abc",
])  # fmt: skip
def test_a_command_with_a_secret_is_reported_without_repeating_it(command: str) -> None:
    findings = [*cell_archive.archiving("cell", {"archive_command": command}, HEALTHY)]
    assert grades(findings) == [Grade.GOOD, Grade.WARNING]
    assert all(command not in each.found and "hunter2" not in f"{each}" for each in findings)


@pytest.mark.parametrize("command", [
    "", "cp %p /archive/%f", "pgbackrest --stanza=main archive-push %p", "wal-g wal-push %p",
    "envdir /etc/wal-g.d/env wal-g wal-push %p", "test ! -f /mnt/a/%f && cp %p /mnt/a/%f", "rsync -a %p vault:/wal/%f",
    "push --password-file /etc/secret %p",
    "psql 'host=vault passfile=/etc/pass'", "push --token-file=/etc/token %p", "aws s3 cp %p s3://bucket/%f",
])  # fmt: skip
def test_an_ordinary_command_is_not_taken_for_a_secret(command: str) -> None:
    assert not cell_archive.looks_secret(command)


def test_a_file_that_is_not_archived_is_named_with_the_command_that_says_why() -> None:
    failing = replace(
        ARCHIVED, is_archiving_failing=True, failed_wal="000000010000000000000007", files_to_archive=3,
        archive_lag_s=190.0,
    )  # fmt: skip
    (finding,) = cell_archive.archiving("cell eu-1", {"archive_command": COMMAND}, failing)
    assert "It does not archive: archive_command failed for the WAL file 000000010000000000000007." in finding.found
    assert "3 files wait, since 190 s at most." in finding.found
    command = shlex.split((finding.fix or "").split("`")[1])
    assert "--config-path=/etc/the cell/pgbackrest" in command
    assert command[-2:] == ["archive-push", "/data/pg_wal/000000010000000000000007"]
    for other in ("cp %p /archive/%f", "", "pgbackrest 'archive-push"):
        (finding,) = cell_archive.archiving("cell eu-1", {"archive_command": other}, failing)
        assert "run archive_command by hand" in (finding.fix or "")


@pytest.mark.parametrize(
    ("measures", "grade", "words"),
    [
        (ARCHIVED, Grade.GOOD, "The last backup in its archive is 0 h old."),
        (replace(ARCHIVED, archive_backup_age_s=30 * 3_600.0), Grade.GOOD, "30 h old"),
        (replace(ARCHIVED, archive_backup_age_s=73 * 3_600.0), Grade.WARNING, "is 73 h old"),
        (replace(ARCHIVED, has_archive_backup=False), Grade.WARNING, "no backup in its archive, since 0 h"),
        (
            replace(ARCHIVED, has_archive_backup=False, archive_backup_age_s=None),
            Grade.WARNING,
            "no backup in its archive, since 240 h",
        ),
    ],
)
async def test_a_last_backup_that_is_old_is_reported(measures: CellMeasures, grade: Grade, words: str) -> None:
    # Made here, because the run may be old when it comes to this test.
    cell = replace(CELL, created_at=datetime.now(UTC) - timedelta(days=10))
    (finding,) = await cell_archive.archive_backups("cell eu-1", cell, COMMAND, measures, is_here=False)
    assert finding.grade is grade
    assert words in finding.found
    assert grade is Grade.GOOD or "plainsql-archive@diff.service" in (finding.fix or "")


async def test_a_cell_that_pgbackrest_does_not_archive_has_no_backup_there() -> None:
    standby = replace(ARCHIVED, archive_lag_s=None)
    for measures in (HEALTHY, standby):
        assert archive_backup_age_s(measures, ADDED_AT) is None
        assert await cell_archive.archive_backups("cell eu-1", CELL, COMMAND, measures, is_here=True) == []
