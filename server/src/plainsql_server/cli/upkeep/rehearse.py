"""`plainsql-server backup rehearse`."""

import random
from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.point_in_time import (
    archive_option,
    cell_of_archive,
    cell_of_archive_option,
    free_percent_option,
    work_folder_option,
)
from plainsql_server.cli.progress import Bar
from plainsql_server.cli.running import chosen_database, with_directory
from plainsql_server.control_plane import cells
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.rehearsal import Rehearsed, rehearse


@click.command("rehearse")
@archive_option(required=True)
@work_folder_option
@free_percent_option
@cell_of_archive_option
@click.option("--database", metavar="NAME-OR-ID", help="Database to restore, instead of one at random.")
@click.option("--org", "organization", metavar="NAME-OR-ID", help="Organization that owns the --database.")
def rehearse_command(
    *, archive: Path, work_folder: Path, free_percent: int, cell_name: str | None, database: str | None,
    organization: str | None,
) -> None:  # fmt: skip
    """Rehearse a restore from the archive of a cell, and compare the result. Meant for a timer.

    Restores a database, which is chosen at random among those with rows, to a spare cluster on this machine as
    `restore --at` does, as it was seconds ago, and compares the rows and a checksum of each table with those that the
    cell has of the same time. The cell serves all databases meanwhile. Nothing is left of the spare cluster.

    How it ended is recorded in the directory, for `doctor`, metrics and alerts. Exit code 1: the archive can't be
    restored or holds something else, or no database could be read and has rows.
    """

    async def work(directory: Directory) -> Rehearsed:
        cell, candidates = await _candidates(directory, cell_name, organization, database)
        return await rehearse(
            directory, cell, candidates, Archive(archive.resolve()), folder=work_folder,
            free_ratio=free_percent / 100, progress=bar,
        )  # fmt: skip

    with Bar() as bar:
        rehearsed = with_directory(work, reads="rehearsal")
    contents = rehearsed.contents
    remark(
        f"Restored the database {rehearsed.database.id} as it was at {contents.taken_at.isoformat()}. It is the same:"
        f" {len(contents.tables)} tables with {contents.rows} rows."
    )
    if contents.skipped:
        remark(f"Not compared, because their owner has no privileges on them: {contents.skipped} tables.")


async def _candidates(
    directory: Directory, cell_name: str | None, organization: str | None, database: str | None
) -> tuple[CellRecord, list[DatabaseRecord]]:
    """The cell, and its databases in the order in which to try them."""
    if database is not None:
        chosen = await chosen_database(directory, organization, database)
        return await cells.get(directory, chosen.cell_id), [chosen]
    cell = await cell_of_archive(directory, cell_name)
    found = await stored.ready_on(directory, cell.id)
    random.shuffle(found)
    return cell, found
