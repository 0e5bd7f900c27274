"""`plainsql-server restore`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Unpack

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.point_in_time import Destination, PointInTimeOptions, point_in_time_options, restore_as_it_was
from plainsql_server.cli.progress import Bar
from plainsql_server.cli.running import chosen_database, with_directory
from plainsql_server.cli.upkeep.pipe import pipe_option
from plainsql_server.control_plane import organizations
from plainsql_server.core.names import DATABASE_ID
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.restore import RestoreTimes, replace_database, restore_database, restore_directory
from plainsql_server.operations.upkeep.pipeline import Commands, reading_through
from plainsql_server.settings import Settings, read_settings

# How far a node's clock may differ from ours while it picks up a change.
_MARGIN_MS = 1_000


@click.command("restore")
@click.argument("name", metavar="DATABASE", required=False)
@click.option("--org", "organization", metavar="NAME-OR-ID", help="Organization that gets the database.")
@click.option("--directory", "of_directory", is_flag=True, help="Restore the directory into an empty database.")
@click.option(
    "--input", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Backup file; standard input by default.",
)  # fmt: skip
@pipe_option("Programs that the backup passes through first, such as 'age -d -i key.txt | zstd -dq'.")
@click.option("--replace", is_flag=True, help="Replace the content of the existing database, given by name or ID.")
@click.option(
    "--of-another", is_flag=True, help="The backup is of another organization; with --replace, of another database."
)
@click.option("--lost", is_flag=True, help="With --replace: do without the database's cell, which is lost.")
@click.option("--to", metavar="CELL", help="Cell to restore to; by default the one with the most free capacity.")
@point_in_time_options
def restore_command(
    *, name: str | None, organization: str | None, of_directory: bool, source: Path | None, commands: Commands,
    replace: bool, of_another: bool, lost: bool, to: str | None, **time_options: Unpack[PointInTimeOptions],
) -> None:  # fmt: skip
    """Restore a backup as the new database DATABASE. Prints its ID.

    The database can't be used until the restore is complete. With --replace, the database keeps its ID, name and keys,
    and its content is swapped in one step. The old content becomes a deleted database with another name, which can be
    restored for PLAINSQL_DATABASE_RESTORE_S. If the restore fails or is interrupted, nothing has changed.

    If the cell of the database is gone for good, run `plainsql-server cell set CELL --state lost`, then restore with
    --replace --lost.

    With --at, there is no backup file: the database --from is restored as it was at that time, from the archive of its
    cell (see `plainsql-server cell files --archive-to`), on a machine that has the archive and PostgreSQL. With
    --replace, DATABASE itself is. `--at latest` restores it as it was last, and is refused if its cell can't archive
    what it wrote last, unless that was received (`cell files --stream-to`) and is in --received. `--at archived`
    restores what the archive has. Either says when the last commit was.
    """
    _check_usage(
        name, organization, of_directory=of_directory, replace=replace, others=lost or of_another or to is not None
    )
    if lost and not replace:
        raise click.UsageError("--lost needs --replace.")
    settings = read_settings()
    if time_options["at"] is not None:
        if source is not None or of_directory or commands or name is None:
            raise click.UsageError("--at can't be used with --input, --pipe or --directory, and needs a DATABASE.")
        target = Destination(name, organization, replace=replace, to=to, lost=lost, times=times_of(settings))
        click.echo(restore_as_it_was(target, time_options))
        return
    if any(time_options[name] is not None for name in ("origin", "archive", "received")):
        raise click.UsageError("--from, --archive and --received need --at.")
    with _opened(source) as file, reading_through(commands, file) as stream, Bar() as bar:
        if name is None:
            unfinished = with_directory(
                lambda directory: restore_directory(directory, settings.directory_dsn, stream, bar)
            )
            if unfinished:
                remark(f"Unfinished creations, deletions and moves, which wait for 7 days: {unfinished}.")
            restored = None
        elif replace:
            times = times_of(settings)

            async def replaced(directory: Directory) -> DatabaseRecord:
                target = await chosen_database(directory, organization, name)
                return await replace_database(
                    directory, target, stream, bar, times=times, lost=lost, to=to, of_another=of_another
                )

            restored = with_directory(replaced)
        else:

            async def created(directory: Directory) -> DatabaseRecord:
                owner = await organizations.get(directory, organization or "")
                return await restore_database(directory, owner.id, name, stream, bar, to=to, of_another=of_another)

            restored = with_directory(created)
    if restored is None:
        remark(
            "Restored the directory. Revoke again what was revoked after the backup, then run"
            " `plainsql-server migrate` and `plainsql-server doctor`."
        )
        return
    remark(f"Restored the database {restored.name!r} on the cell {restored.cell_name!r}.")
    click.echo(restored.id)


def _check_usage(
    name: str | None, organization: str | None, *, of_directory: bool, replace: bool, others: bool
) -> None:
    is_id = name is not None and replace and DATABASE_ID.match(name) is not None
    if of_directory == (name is not None) or (not is_id and (name is not None) != (organization is not None)):
        raise click.UsageError("Give a database and its --org, or with --replace its ID, or --directory.")
    if of_directory and (replace or others):
        raise click.UsageError(
            "--replace, --lost, --of-another and --to can't be used with --directory. A directory is restored into an"
            " empty database."
        )


def times_of(settings: Settings) -> RestoreTimes:
    """How long replaced content is kept, and how long nodes take to notice."""
    applied_after_ms = settings.principal_cache_ms + settings.directory_grace_ms + _MARGIN_MS
    return RestoreTimes(settings.database_restore_s, applied_after_ms / 1000)


@contextmanager
def _opened(source: Path | None) -> Iterator[BinaryIO]:
    if source is not None:
        with source.open("rb") as stream:
            yield stream
    elif sys.stdin.isatty():
        raise click.UsageError("Pipe the backup to standard input, or use --input.")
    else:
        yield sys.stdin.buffer
