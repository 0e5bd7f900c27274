"""`plainsql-server restores …`."""

from pathlib import Path

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.point_in_time import (
    archive_option,
    cell_of_archive,
    cell_of_archive_option,
    free_percent_option,
    work_folder_option,
)
from plainsql_server.cli.restore import times_of
from plainsql_server.cli.running import with_directory
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.restoring import restores
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.worker import RestoreWorker
from plainsql_server.settings import read_settings


@click.group("restores")
def restores_command() -> None:
    """Carry out the restores to a point in time that customers ask for."""


@restores_command.command("list")
@click.option("--last", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="NUMBER",
              help="How many to list.")  # fmt: skip
@json_option
def list_command(last: int, as_json: bool) -> None:
    """List the restores that customers have asked for, newest first."""
    columns = [
        "id", "organization_id", "database_id", "target_id", "point", "state", "attempts", "step", "seconds_left",
        "error_code", "created_at", "ended_at",
    ]  # fmt: skip
    print_records(with_directory(lambda directory: restores.list_(directory, None, last)), columns, as_json=as_json)


@restores_command.command("work")
@archive_option(required=True)
@work_folder_option
@free_percent_option
@cell_of_archive_option
@click.option("--longest-minutes", type=click.IntRange(min=1), default=120, show_default=True,
              help="Give up a restore that takes longer.")  # fmt: skip
def work_command(
    archive: Path, work_folder: Path, free_percent: int, cell_name: str | None, longest_minutes: int
) -> None:
    """Carry out restores from the archive of a cell, one after the other, until it is ended. Meant for a service.

    Customers ask for them with POST /v1/databases/{id}/restore. Each is carried out as `restore --at` does, on this
    machine. While no such process runs for a cell, its customers can't ask. Several may run for a cell.

    On SIGTERM, it leaves the restore that it is working on to the next one. Exit code 1: the archive can't be read.
    """
    times = times_of(read_settings())

    async def work(directory: Directory) -> None:
        cell = await cell_of_archive(directory, cell_name)
        worker = RestoreWorker(
            directory,
            cell,
            Archive(archive.resolve()),
            work_folder,
            times,
            longest_minutes * 60.0,
            free_percent / 100,
            remark,
        )
        await worker.run()

    with_directory(work, max_connections=3)
