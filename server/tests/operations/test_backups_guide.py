"""docs/backups.md: its commands in order, on a real cell with a real archive, and with the paths of a test."""

import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.operations.files.archive import ArchiveConfig
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER, Postgres, run_as_postgres
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

GUIDE = Path(__file__).resolve().parents[3] / "docs/backups.md"
_BLOCKS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FOLDER, _ARCHIVE = "/etc/postgresql/15/main", "/srv/archive"
_TIME = "2027-01-31T12:30:00Z"


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


def commands(number: int) -> list[list[str]]:
    """The words of each command in one of the guide's blocks."""
    return [shlex.split(line) for line in _BLOCKS.findall(GUIDE.read_text())[number].splitlines()]


def programs_of(unit: str) -> list[list[str]]:
    """The commands that systemd runs for a unit."""
    found = re.findall(r"^ExecStart(?:Pre)?=(.*)$", unit, re.MULTILINE)
    return [shlex.split(each.replace("%i", "full").replace("/usr/bin/", "")) for each in found]


def test_the_files_of_the_guide_are_those_that_the_archive_of_this_test_has(cell: ArchivedCell, tmp_path: Path) -> None:
    (writing,) = [each for each in commands(0) if each[:3] == ["plainsql-server", "cell", "files"]]
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
        "plainsql-archive-rehearsal.service", "plainsql-archive-rehearsal.timer",
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


@pytest.mark.parametrize(("block", "database"), [(1, "main-before"), (2, "main")])
def test_one_database_is_restored_as_the_guide_does(cell: ArchivedCell, block: int, database: str) -> None:
    with cell.stage.owner() as owner:
        owner.execute("drop table if exists t")
        owner.execute("create table t as select 'as it was' as a")
        point = datetime.now(UTC).isoformat()
        owner.execute("update t set a = 'a mistake'")
    ((_, *words),) = commands(block)
    words = [each.replace(_TIME, point).replace(f"{_FOLDER}/pgbackrest", str(cell.config_folder)) for each in words]
    cell.stage.run(*words, "--work-folder", str(cell.work_folder))
    with cell.stage.owner(database) as owner:
        assert owner.execute("select a from t").fetchall() == [("as it was",)]


def test_a_restore_is_rehearsed_as_the_guide_and_its_unit_do(cell: ArchivedCell, tmp_path: Path) -> None:
    ((_, *words),) = commands(4)
    assert words[:2] == ["backup", "rehearse"]
    archive = ArchiveConfig("/srv/archive", f"{_FOLDER}/pgbackrest", SUPERUSER, "/data", "/run")
    (unit,) = programs_of(archive.unit_texts("/opt/plainsql-server")["plainsql-archive-rehearsal.service"])
    # systemd gives no word for a variable that is empty.
    assert [each for each in unit if each != "$REHEARSE_OPTIONS"] == ["/opt/plainsql-server", *words]
    words = [each.replace(f"{_FOLDER}/pgbackrest", str(cell.config_folder)) for each in words]
    done = cell.stage.run(*words, "--work-folder", str(cell.work_folder))
    assert "It is the same" in done.stderr


def test_a_lost_cell_is_restored_on_a_new_machine_as_the_guide_does(cell: ArchivedCell) -> None:
    stage, root = cell.stage, cell.config_folder.parent
    with stage.owner() as owner:
        owner.execute("create table acknowledged as select generate_series(1, 1000) as a")
    with stage.postgres.connect() as admin:
        # As after a minute.
        archived = "select pg_walfile_name(pg_switch_wal())"
        (file,) = admin.execute(archived).fetchone() or ("",)
        while not admin.execute("select from pg_stat_archiver where last_archived_wal >= %s", (file,)).rowcount:
            continue
    before = stage.checksums()
    (restore,) = [each[each.index("pgbackrest") :] for each in commands(3) if "pgbackrest" in each]
    new = cell.work_folder / "new"
    new.mkdir(mode=0o700)
    shutil.chown(new, "postgres", "postgres") if root.owner() == "postgres" else None
    words = [each.replace(f"{_FOLDER}/pgbackrest", str(cell.config_folder)) for each in restore]
    binaries = Path("/usr/lib/postgresql/15/bin")
    run_as_postgres(*words, f"--pg1-path={new}", "--log-level-console=warn")
    options = f"-c unix_socket_directories={new} -c archive_mode=off"
    run_as_postgres(binaries / "pg_ctl", "-D", new, "-l", new / "log", "-o", options, "-w", "start")
    try:
        replayed = "select from pg_database where not pg_is_in_recovery()"
        new_postgres = Postgres(str(new))
        wait_for(lambda: _asked(new_postgres, replayed) > 0, 60, (new / "log").read_text)
        (setting,) = [each for each in commands(3) if each[:3] == ["plainsql-server", "cell", "set"]]
        assert setting[4] == "--conninfo"
        stage.run("cell", "set", "local", "--conninfo", new_postgres.conninfo)
        moved = Stage(new_postgres, stage.dsn)
        assert moved.checksums() == before
    finally:
        stage.run("cell", "set", "local", "--conninfo", stage.postgres.conninfo)
        run_as_postgres(binaries / "pg_ctl", "-D", new, "-m", "immediate", "-w", "stop")
        shutil.rmtree(new)


def _asked(postgres: Postgres, query: str) -> int:
    with postgres.connect() as connection:
        return connection.execute(query.encode()).rowcount
