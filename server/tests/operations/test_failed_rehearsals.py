"""A rehearsal that fails because of something else than the archive's content: recorded, and told in one line."""

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

from plainsql_server.control_plane import cells
from plainsql_server.core.errors import ServiceError
from plainsql_server.directory import databases
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.rights.grants import Role
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.rehearsal import rehearse
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.upkeep.test_upkeep_metrics import measured
from server.tests.postgres import as_role

pytestmark = pytest.mark.chaos

# What happens after pgBackRest has restored the files to $data, and what the operator reads.
_FAULTS = {
    "a file that is missing": ('rm "$data/backup_label"', "No such file or directory: '.*/data/backup_label'"),
    "a file that can't be written": ('mkdir "${data%/data}/postgresql.conf"', "Is a directory: '.*/postgresql.conf'"),
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
def test_a_rehearsal_that_fails_for_any_reason_is_recorded_and_told_in_a_line(cell: ArchivedCell, what: str) -> None:
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


class EndsTheServer:
    """A `Progress` that kills the spare cluster as soon as its database is compared."""

    def __init__(self, work_folder: Path) -> None:
        self._work_folder = work_folder

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        if label == "compare":
            (file,) = self._work_folder.glob("*/data/postmaster.pid")
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
