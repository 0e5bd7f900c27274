"""`plainsql-server backups`."""

from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.running import with_directory
from plainsql_server.cli.upkeep.pipe import pipe_option
from plainsql_server.operations.upkeep.pipeline import Commands
from plainsql_server.operations.upkeep.scheduled_backups import ScheduledBackups
from plainsql_server.settings import read_settings

_FOLDER = click.Path(exists=True, file_okay=False, writable=True, path_type=Path)


@click.command("backups")
@click.option("--to", "folder", type=_FOLDER, required=True, help="Folder for the backups. It must exist.")
@click.option("--keep-days", type=click.IntRange(min=1), default=14, show_default=True,
              help="Delete older backups, except the newest of each database.")  # fmt: skip
@pipe_option("Programs that each backup passes through, such as 'zstd -q | age -r age1…'.")
def backups_command(folder: Path, keep_days: int, commands: Commands) -> None:
    """Back up the directory and all databases into a folder, and delete old backups. Meant for a timer.

    A database that can't be backed up is tried twice and does not stop the others. The newest backup of a database is
    never deleted while the database exists. When it is gone, its backups are deleted after --keep-days like all others.
    Exit code 1: something was not backed up.
    """
    dsn = read_settings().directory_dsn
    failures = with_directory(
        lambda directory: ScheduledBackups(directory, dsn, commands, remark).into(folder, keep_days), reads="backups"
    )
    if failures:
        raise click.ClickException(f"Not backed up: {len(failures)}. {' '.join(failures)[:2_000]}")
