"""`plainsql-server restore`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.progress import Bar
from plainsql_server.cli.running import with_directory
from plainsql_server.cli.upkeep.pipe import pipe_option
from plainsql_server.control_plane import organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.restore import RestoreTimes, restore_database, restore_directory
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
@click.option("--replace", is_flag=True, help="Replace the content of the existing database.")
def restore_command(
    *,
    name: str | None,
    organization: str | None,
    of_directory: bool,
    source: Path | None,
    commands: Commands,
    replace: bool,
) -> None:
    """Restore a backup as the new database DATABASE. Prints its ID.

    The database can't be used until the restore is complete. With --replace, the database keeps its ID, name and keys,
    and its content is swapped in one step. The old content becomes a deleted database with another name, which can be
    restored for PLAINSQL_DATABASE_RESTORE_S. If the restore fails or is interrupted, nothing has changed.
    """
    if of_directory == (name is not None) or (name is not None) != (organization is not None):
        raise click.UsageError("Give a database and its --org, or --directory.")
    if of_directory and replace:
        raise click.UsageError(
            "--replace can't be used with --directory. A directory is restored into an empty database."
        )
    settings = read_settings()
    with _opened(source) as file, reading_through(commands, file) as stream, Bar() as bar:
        if organization is None or name is None:
            with_directory(lambda directory: restore_directory(directory, settings.directory_dsn, stream, bar))
            restored = None
        else:
            chosen = (organization, name)
            restored = with_directory(
                lambda directory: _restore(directory, chosen, stream, bar, settings=settings, replace=replace)
            )
    if restored is None:
        remark(
            "Restored the directory. Revoke again what was revoked after the backup, then run"
            " `plainsql-server migrate` and `plainsql-server doctor`."
        )
        return
    remark(f"Restored the database {restored.name!r}.")
    click.echo(restored.id)


async def _restore(
    directory: Directory, chosen: tuple[str, str], stream: BinaryIO, bar: Bar, *, settings: Settings, replace: bool
) -> DatabaseRecord:
    organization, name = chosen
    owner = await organizations.get(directory, organization)
    applied_after_ms = settings.principal_cache_ms + settings.directory_grace_ms + _MARGIN_MS
    times = RestoreTimes(settings.database_restore_s, applied_after_ms / 1000)
    return await restore_database(directory, owner.id, name, stream, bar, replaces=replace, times=times)


@contextmanager
def _opened(source: Path | None) -> Iterator[BinaryIO]:
    if source is not None:
        with source.open("rb") as stream:
            yield stream
    elif sys.stdin.isatty():
        raise click.UsageError("Pipe the backup to standard input, or use --input.")
    else:
        yield sys.stdin.buffer
