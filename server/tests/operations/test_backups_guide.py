"""docs/backups.md: its commands in order, on a real cell with a real archive, and with the paths of a test."""

import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.operations.files.archive import ArchiveConfig
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.backups_guide import GUIDE, listed, section
from server.tests.postgres import SUPERUSER, run_as_postgres
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

_FOLDER, _ARCHIVE = "/etc/postgresql/15/main", "/srv/archive"
_TIME = "2027-01-31T12:30:00Z"


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


def commands(heading: str) -> list[list[str]]:
    """The words of each command below a heading of the guide."""
    return [shlex.split(line) for line in listed(section(heading))]


def programs_of(unit: str) -> list[list[str]]:
    """The commands that systemd runs for a unit."""
    found = re.findall(r"^ExecStart(?:Pre)?=(.*)$", unit, re.MULTILINE)
    return [shlex.split(each.replace("%i", "full").replace("/usr/bin/", "")) for each in found]


def test_the_files_of_the_guide_are_those_that_the_archive_of_this_test_has(cell: ArchivedCell, tmp_path: Path) -> None:
    lines = commands("The archive of a cell")
    (writing,) = [each for each in lines if each[:3] == ["plainsql-server", "cell", "files"]]
    root = cell.config_folder.parent
    words = [each.replace(_FOLDER, str(tmp_path)).replace(_ARCHIVE, f"{root}/repository") for each in writing[1:]]
    words[words.index("plainsql_admin")] = SUPERUSER
    options = ["--data-folder", f"{root}/data", "--socket-directory", str(root)]
    keys = []
    for _ in range(2):
        # Again, as an operator does: the key stays.
        done = CliRunner().invoke(main, [*words, *options])
        assert done.exit_code == 0, done.output
        keys.append((tmp_path / "pgbackrest/conf.d/key.conf").read_text())
    assert keys[0] == keys[1]
    assert (tmp_path / "pgbackrest/conf.d/key.conf").stat().st_mode & 0o777 == 0o600
    written = (tmp_path / "pgbackrest/pgbackrest.conf").read_text()
    assert written.startswith((cell.config_folder / "pgbackrest.conf").read_text())
    settings = (tmp_path / "conf.d/plainsql.conf").read_text().replace(str(tmp_path), str(root))
    with cell.stage.postgres.connect() as admin:
        for name in ("archive_mode", "archive_command"):
            (value,) = admin.execute(f"show {name}").fetchone() or ("",)
            assert f"{name} = '{value}'" in settings
    units = {each.name: each.read_text() for each in tmp_path.glob("plainsql-archive*")}
    assert set(units) == {
        "plainsql-archive@.service", "plainsql-archive-full.timer", "plainsql-archive-diff.timer",
        "plainsql-archive-rehearsal.service", "plainsql-archive-rehearsal.timer", "plainsql-archive-restores.service",
    }  # fmt: skip
    for program, *arguments in programs_of(units["plainsql-archive@.service"]):
        run_as_postgres(program, *(each.replace(str(tmp_path), str(root)) for each in arguments))


def test_a_backup_takes_the_operators_own_configuration_of_the_guide(cell: ArchivedCell) -> None:
    (own,) = re.findall(r"^ *```ini\n(.*?)^ *```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    file = cell.config_folder / "conf.d/own.conf"
    file.write_text(textwrap.dedent(own))
    try:
        cell.back_up("diff")
    finally:
        file.unlink()


@pytest.mark.parametrize(("number", "database"), [(0, "main-before"), (1, "main")])
def test_one_database_is_restored_as_the_guide_does(cell: ArchivedCell, number: int, database: str) -> None:
    with cell.stage.owner() as owner:
        owner.execute("drop table if exists t")
        owner.execute("create table t as select 'as it was' as a")
        point = datetime.now(UTC).isoformat()
        owner.execute("update t set a = 'a mistake'")
    _, *words = commands("Restore one database as it was")[number]
    words = [each.replace(_TIME, point).replace(f"{_FOLDER}/pgbackrest", str(cell.config_folder)) for each in words]
    cell.stage.run(*words, "--work-folder", str(cell.work_folder))
    with cell.stage.owner(database) as owner:
        assert owner.execute("select a from t").fetchall() == [("as it was",)]


def test_a_restore_is_rehearsed_as_the_guide_and_its_unit_do(cell: ArchivedCell, tmp_path: Path) -> None:
    ((_, *words),) = commands("Rehearse a restore")
    assert words[:2] == ["backup", "rehearse"]
    archive = ArchiveConfig("/srv/archive", f"{_FOLDER}/pgbackrest", SUPERUSER, "/data", "/run")
    (unit,) = programs_of(archive.restoring_texts("/opt/plainsql-server")["plainsql-archive-rehearsal.service"])
    # systemd gives no word for a variable that is empty.
    assert [each for each in unit if each != "$REHEARSE_OPTIONS"] == ["/opt/plainsql-server", *words]
    words = [each.replace(f"{_FOLDER}/pgbackrest", str(cell.config_folder)) for each in words]
    with cell.stage.owner() as owner:
        owner.execute("create table if not exists rehearsed as select 1 as a")
    done = cell.stage.run(*words, "--work-folder", str(cell.work_folder))
    assert "It is the same" in done.stderr


def test_a_worker_runs_as_in_the_guide_and_its_unit(cell: ArchivedCell) -> None:
    ((_, *words),) = commands("Let customers restore")
    assert words[:2] == ["restores", "work"]
    archive = ArchiveConfig("/srv/archive", f"{_FOLDER}/pgbackrest", SUPERUSER, "/data", "/run")
    (unit,) = programs_of(archive.restoring_texts("/opt/plainsql-server")["plainsql-archive-restores.service"])
    assert [each for each in unit if each != "$RESTORES_OPTIONS"] == ["/opt/plainsql-server", *words]
    words = [each.replace(f"{_FOLDER}/pgbackrest", str(cell.config_folder)) for each in words]
    worker = cell.stage.start(*words, "--work-folder", str(cell.work_folder), stderr=subprocess.PIPE)
    wait_for(lambda: cell.stage.ask("SELECT FROM restore_workers") != [], 60, lambda: str(worker.poll()))
    worker.terminate()
    _, output = worker.communicate(timeout=60)
    assert (worker.returncode, output) == (0, b"Ended.\n")


def test_the_files_of_the_directorys_archive_are_written_again_with_the_same_key(tmp_path: Path) -> None:
    (words,) = [each for each in commands("The archive of the directory") if each[1:2] == ["directory"]]
    words = [each.replace("/etc/postgresql/15/directory", str(tmp_path)) for each in words[1:]]
    texts = []
    for _ in range(2):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        texts.append({file.name: file.read_text() for file in tmp_path.rglob("*") if file.is_file()})
    assert texts[0] == texts[1]
    assert set(texts[0]) == {
        "plainsql-archive.conf", "pgbackrest.conf", "key.conf", "plainsql-directory-archive@.service",
        "plainsql-directory-archive-full.timer", "plainsql-directory-archive-diff.timer",
    }  # fmt: skip
    assert "pg1-port=5433\npg1-user=postgres\n" in texts[0]["pgbackrest.conf"]
    assert "directory to its archive" in texts[0]["plainsql-directory-archive@.service"]
    assert (tmp_path / "pgbackrest/conf.d/key.conf").stat().st_mode & 0o777 == 0o600
