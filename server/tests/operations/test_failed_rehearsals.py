"""A rehearsal that fails because of something else than the archive's content: recorded, and shown in one line."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plainsql_server.cli.progress import Bar
from plainsql_server.control_plane import cells
from plainsql_server.core.errors import RequestError, ServiceError
from plainsql_server.directory import databases
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.rights.grants import Role
from plainsql_server.operations.point_in_time import free_space
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.rehearsal import Rehearsed, rehearse
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.upkeep.test_upkeep_metrics import measured
from server.tests.postgres import as_role

pytestmark = pytest.mark.chaos

# What happens after pgBackRest has restored the files to $data, and what the operator reads.
_FAULTS = {
    "a file that is missing": ('rm "$data/PG_VERSION"', "No such file or directory: .*PG_VERSION"),
    "a file with other content": ('echo fifteen > "$data/PG_VERSION"', "fifteen"),
    "a program that is killed": ("kill -KILL $$", "it was ended by SIGKILL"),
}
_PROGRAM = """\
#!/bin/sh
/usr/bin/pgbackrest "$@" || exit
for each in "$@"; do
    case "$each" in --pg1-path=*) data=${{each#*=}}; {fault} ;; esac
done
"""


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        with cell.stage.owner() as owner:
            owner.execute("create table t as select 1 as a")
        cell.back_up()
        yield cell


@contextmanager
def faulty(cell: ArchivedCell, fault: str) -> Iterator[ArchivedCell]:
    """The same cell for commands that find this pgBackRest first."""
    folder = cell.config_folder.with_name("faulty")
    folder.mkdir(exist_ok=True)
    program = folder / "pgbackrest"
    program.write_text(_PROGRAM.format(fault=fault))
    program.chmod(0o755)
    settings = {"PATH": f"{folder}:{os.environ['PATH']}"}
    yield replace(cell, stage=replace(cell.stage, settings=settings))


def rehearsed(cell: ArchivedCell, exit_code: int) -> str:
    """The last line of the command's errors: others show how far it is."""
    folders = ("--archive", str(cell.config_folder), "--work-folder", str(cell.work_folder))
    done = cell.stage.run("backup", "rehearse", *folders, exit_code=exit_code)
    assert cell.left_over() == []
    return done.stderr.splitlines()[-1]


def assert_recorded_as_failed(cell: ArchivedCell) -> None:
    assert asyncio.run(measured(cell.stage, {}))["cell_rehearsal_failed local"] == 1
    assert_found(doctor(cell.stage), "The last rehearsal of a restore from its archive failed", "log", "warning")


@pytest.mark.parametrize("what", _FAULTS)
def test_a_rehearsal_that_fails_for_any_reason_is_recorded_and_shown_in_a_line(cell: ArchivedCell, what: str) -> None:
    cell.stage.ask("delete from rehearsals")
    fault, reason = _FAULTS[what]
    with faulty(cell, fault) as spoiled:
        line = rehearsed(spoiled, 1)
    assert re.fullmatch(f"Error: .*{reason}.*", line)
    assert_recorded_as_failed(cell)
    rehearsed(cell, 0)
    assert asyncio.run(measured(cell.stage, {}))["cell_rehearsal_failed local"] == 0


@pytest.mark.parametrize("what", ["a file that is missing", "a program that is killed"])
def test_a_restore_that_fails_for_any_reason_says_so_in_a_line(cell: ArchivedCell, what: str) -> None:
    fault, reason = _FAULTS[what]
    point = datetime.now(UTC).isoformat()
    with faulty(cell, fault) as spoiled:
        options = spoiled.options(point)
        failed = spoiled.stage.run("restore", "--org", "acme", "never", "--from", "main", *options, exit_code=1)
    assert re.fullmatch(f"Error: .*{reason}.*", failed.stderr.splitlines()[-1])
    assert cell.left_over() == []


@contextmanager
def seeming_large(cell: ArchivedCell) -> Iterator[int]:
    """The database has more bytes than are free where spare clusters are, but none of them is on the disk. How many."""
    found = os.statvfs(cell.work_folder)
    more_bytes = found.f_bavail * found.f_frsize + 2**30
    with cell.stage.admin() as admin:
        ((oid,),) = admin.execute("select oid from pg_database where datname = current_database()").fetchall()
    file = cell.config_folder.parent / f"data/base/{oid}/large"
    with file.open("wb") as made:
        made.truncate(more_bytes)
    try:
        yield more_bytes
    finally:
        file.unlink()


def test_a_database_for_which_there_is_no_room_is_refused_before_anything_is_restored(cell: ArchivedCell) -> None:
    cell.stage.ask("delete from rehearsals")
    options = cell.options(datetime.now(UTC).isoformat())
    restoring = ("restore", "--org", "acme", "never", "--from", "main", *options)
    for command in (("backup", "rehearse", *options[2:]), restoring):
        with seeming_large(cell) as bytes_:
            output = cell.stage.run(*command, exit_code=1).stderr
        refused = re.search(r"takes ([\d,]+) bytes in (\S+), and ([\d,]+) bytes are free there", output)
        assert refused is not None, output
        needed, free = (int(refused[number].replace(",", "")) for number in (1, 3))
        assert (refused[2], free < bytes_ < needed) == (str(cell.work_folder), True)
        assert "restore the cell's files" not in output
        assert cell.left_over() == []
    assert_recorded_as_failed(cell)


def test_nothing_is_restored_where_too_little_is_free(cell: ArchivedCell) -> None:
    cell.stage.ask("delete from rehearsals")
    options = (*cell.options(datetime.now(UTC).isoformat()), "--free-percent", "100")
    restoring = ("restore", "--org", "acme", "never", "--from", "main", *options)
    for command in (("backup", "rehearse", *options[2:]), restoring):
        output = cell.stage.run(*command, exit_code=1).stderr
        assert "must stay free" in output
        assert "restore the cell's files" not in output
        assert cell.left_over() == []
    assert_recorded_as_failed(cell)


async def test_databases_without_rows_are_passed_over_and_prove_nothing(cell: ArchivedCell) -> None:
    cell.stage.ask("delete from rehearsals")
    cell.stage.run("database", "create", "--org", "acme", "empty")
    with cell.stage.owner("empty") as owner:
        owner.execute("create table t (a int)")
    async with Directory.open(as_role(cell.stage.dsn, Role.OPERATOR)) as directory:
        local = await cells.get(directory, "local")
        ready = {each.name: each for each in await databases.ready_on(directory, local.id)}

        async def rehearsed_with(*names: str) -> Rehearsed:
            return await rehearse(
                directory, local, [ready[name] for name in names], Archive(cell.config_folder),
                folder=cell.work_folder, progress=Bar(),
            )  # fmt: skip

        with pytest.raises(RequestError, match=r"have no rows: 1\. To restore an empty database proves nothing"):
            await rehearsed_with("empty")
        assert cell.stage.ask("select from rehearsals") == []
        assert (await rehearsed_with("empty", "main")).database.name == "main"
    assert cell.stage.ask("select succeeded_at is null, failed_at is null from rehearsals") == [(False, True)]


def test_wal_for_which_there_is_no_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    free_space.check_space_for_wal(tmp_path, None, 0)
    monkeypatch.setattr(free_space, "_WAL_MOST_BYTES", 2**60)
    with pytest.raises(RequestError, match="bytes of WAL takes"):
        free_space.check_space_for_wal(tmp_path, found.f_blocks * found.f_frsize, 0)


class EndsTheServer:
    """A `Progress` that kills the spare cluster as soon as its database is compared."""

    def __init__(self, work_folder: Path) -> None:
        self._work_folder = work_folder

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        if label == "compare":
            (file,) = self._work_folder.glob("*/pg/data/postmaster.pid")
            os.kill(int(file.read_text().splitlines()[0]), signal.SIGKILL)

    def at(self, done: int) -> None:
        pass


async def test_a_rehearsal_whose_server_is_killed_is_recorded(cell: ArchivedCell) -> None:
    cell.stage.ask("delete from rehearsals")
    async with Directory.open(as_role(cell.stage.dsn, Role.OPERATOR)) as directory:
        local = await cells.get(directory, "local")
        with pytest.raises(ServiceError):
            await rehearse(
                directory, local, await databases.ready_on(directory, local.id), Archive(cell.config_folder),
                folder=cell.work_folder, progress=EndsTheServer(cell.work_folder),
            )  # fmt: skip
    assert cell.stage.ask("select succeeded_at is null, failed_at is not null from rehearsals") == [(True, True)]
    assert cell.left_over() == []
