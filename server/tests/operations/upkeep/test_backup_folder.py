"""A folder of scheduled backups: what is kept, what is deleted, and which names appear when."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import pytest

from plainsql_server.cli.upkeep.backups import backups_command
from plainsql_server.core.errors import ConflictError, RequestError
from plainsql_server.operations.upkeep.backup_folder import BackupFolder

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
A, B, GONE = (f"db_{letter * 32}" for letter in "abc")


def _fail(file: BinaryIO) -> None:
    file.write(b"half")
    raise OSError("the disk is full")


def fill(folder: BackupFolder, target: str, *ages_days: float) -> None:
    for age in ages_days:
        with folder.new_file(target, NOW - timedelta(days=age)) as file:
            file.write(b"x")


def ages_days(folder: BackupFolder, target: str) -> list[int]:
    taken = [datetime.strptime(each.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for each in folder.backups(target)]
    return [(NOW - each).days for each in taken]


def test_the_newest_backup_of_an_existing_database_is_kept_however_old(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    fill(folder, A, 30, 10, 1)
    fill(folder, B, 40, 30)
    fill(folder, "directory", 20)
    removed = folder.prune({A, B, "directory"}, 14, NOW)
    assert len(removed) == 2
    assert ages_days(folder, A) == [10, 1]
    assert ages_days(folder, B) == [30]
    assert ages_days(folder, "directory") == [20]


def test_backups_of_a_database_that_is_gone_end_with_the_retention(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    fill(folder, GONE, 30, 13)
    folder.prune({A}, 14, NOW)
    assert ages_days(folder, GONE) == [13]
    folder.prune({A}, 14, NOW + timedelta(days=2))
    assert folder.targets() == []


def test_files_and_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    fill(folder, GONE, 30)
    for name in ("notes.txt", f"{GONE}/20200101T000000Z.backup", f"{GONE}/20209999T000000Z-abcdef.backup"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "other").mkdir()
    with folder.locked():
        assert [each.name for each in folder.prune(set(), 14, NOW)] != []
    assert len(list((tmp_path / GONE).iterdir())) == 2
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "other").exists()


def test_a_failed_or_empty_backup_has_no_name(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    with pytest.raises(OSError, match="full"), folder.new_file(A, NOW) as file:
        _fail(file)
    with pytest.raises(RequestError, match="empty"), folder.new_file(A, NOW):
        pass
    assert list((tmp_path / A).iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    fill(folder, A, 1)
    (tmp_path / A / "20261118T000000Z-abcdef.backup.part").write_bytes(b"half")
    with folder.locked():
        assert len(list((tmp_path / A).iterdir())) == 1


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    other = BackupFolder(tmp_path)
    with BackupFolder(tmp_path).locked(), pytest.raises(ConflictError, match="Another run"), other.locked():
        pass
    with BackupFolder(tmp_path).locked():
        pass


def test_backups_of_the_same_second_do_not_collide_and_are_private(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    fill(folder, A, 1, 1, 1)
    files = folder.backups(A)
    assert len(files) == 3
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    assert (tmp_path / A).stat().st_mode & 0o777 == 0o700


def test_the_unit_for_systemd_calls_the_command_as_it_is() -> None:
    unit = (Path(__file__).resolve().parents[4] / "deploy/systemd/plainsql-backup.service").read_text()
    (line,) = re.findall(r"^ExecStart=/opt/plainsql/bin/plainsql-server backups (.*)$", unit, re.MULTILINE)
    values = {"${BACKUP_KEEP_DAYS}": "14", "${BACKUP_PIPE}": "zstd -q | age -r age1"}
    arguments = [values.get(each, each) for each in line.replace("/var/lib/plainsql/backups", "/tmp").split()]
    context = backups_command.make_context("backups", arguments)
    assert context.params["commands"] == [["zstd", "-q"], ["age", "-r", "age1"]]
    assert context.params["keep_days"] == 14
    # With an empty BACKUP_PIPE, backups are not encrypted.
    assert backups_command.make_context("backups", ["--to", "/tmp", "--pipe", ""]).params["commands"] == []
