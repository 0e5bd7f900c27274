"""`plainsql-server backup`."""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.progress import Bar, size
from plainsql_server.cli.running import chosen_database, note_reading, with_directory
from plainsql_server.cli.upkeep.rehearse import rehearse_command
from plainsql_server.core.names import DATABASE_ID
from plainsql_server.directory.connection import Directory
from plainsql_server.operations.backup import backup_database, backup_directory
from plainsql_server.settings import read_settings

_FILE = click.Path(dir_okay=False, path_type=Path)


class _BackupCommand(click.Command):
    """`backup rehearse` is a command of its own. Any other word is a database."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [rehearse_command.name]:
            return rehearse_command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("backup", cls=_BackupCommand)
@click.argument("name", metavar="DATABASE", required=False)
@click.option("--org", "organization", metavar="NAME-OR-ID", help="Organization that owns the database.")
@click.option("--directory", "of_directory", is_flag=True, help="Back up the directory instead of a database.")
@click.option("--output", type=_FILE, help="File to write; standard output by default.")
def backup_command(name: str | None, organization: str | None, of_directory: bool, output: Path | None) -> None:
    """Back up one database, or the directory, as of one point in time.

    Writes the backup to standard output, or to a file that appears only once it is complete. Progress goes to standard
    error. The backup is not compressed: use `plainsql-server backup --org Acme shop | zstd > shop.zst`. The service
    keeps running.

    `plainsql-server backup rehearse` is another command: it restores a database from the archive of its cell, and
    compares it. See `plainsql-server backup rehearse --help`. To back up a database of that name, begin with --org.
    """
    is_id = name is not None and DATABASE_ID.match(name) is not None
    if of_directory == (name is not None) or (not is_id and (name is not None) != (organization is not None)):
        raise click.UsageError("Give a database's ID, or its name and --org, or --directory.")
    with _opened(output) as stream, Bar() as bar:
        with_directory(lambda directory: _backup(directory, organization, name, stream, bar))
    if output is not None:
        remark(f"Wrote {output}, {size(output.stat().st_size)}.")


async def _backup(directory: Directory, organization: str | None, name: str | None, stream: BinaryIO, bar: Bar) -> None:
    if name is None:
        await note_reading(directory, "operator.backup")
        await backup_directory(directory, read_settings().directory_dsn, stream, bar)
        return
    chosen = await chosen_database(directory, organization, name)
    await note_reading(directory, "database.backup", chosen.organization_id, chosen.id)
    await backup_database(directory, chosen, stream, bar)


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """Open the destination. A file is readable by its owner only, and gets its name once it is synced to disk."""
    if output is None:
        if sys.stdout.isatty():
            raise click.UsageError(
                "A backup can't be written to a terminal. Redirect standard output, or use --output."
            )
        # Not sys.stdout: Python would flush it again at exit and print its own error.
        with _reporting_full_disk("Standard output"), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as stream:
            yield stream
        return
    # A name of its own: of two backups into one file, each must complete its own content.
    draft = output.with_name(f"{output.name}.{secrets.token_hex(4)}.part")
    with _reporting_full_disk(str(output)):
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            draft.rename(output)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _reporting_full_disk(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{target} can't be written: {error.strerror}.") from error
