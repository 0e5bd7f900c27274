"""`plainsql-server directory files`: write the configuration of a continuous archive of the directory's PostgreSQL."""

from pathlib import Path

import click

from plainsql_server.cli.made_secrets import make_key
from plainsql_server.cli.output import remark
from plainsql_server.operations.files.archive import DIRECTORY_ARCHIVE, ArchiveConfig
from plainsql_server.operations.files.placing import place_file


@click.command("files")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--archive-to", required=True, metavar="PATH",
    help="Archive the directory continuously with pgBackRest, encrypted, to this folder.",
)  # fmt: skip
@click.option(
    "--archive-config", metavar="PATH",
    help="Folder of pgBackRest's configuration on the directory's machine.  [default: pgbackrest in FOLDER]",
)  # fmt: skip
@click.option(
    "--admin-role", default="postgres", show_default=True, metavar="ROLE",
    help="Superuser that the system user postgres can log in as on the machine itself.",
)  # fmt: skip
@click.option(
    "--data-folder", default="/var/lib/postgresql/15/directory", show_default=True, help="PostgreSQL's data folder."
)
@click.option(
    "--socket-directory", default="/run/postgresql", show_default=True, help="Folder of PostgreSQL's local socket."
)
@click.option("--port", type=click.IntRange(1, 65535), default=5433, show_default=True, help="Port of the cluster.")
def files_command(
    *, folder: Path, archive_to: str, archive_config: str | None, admin_role: str, data_folder: str,
    socket_directory: str, port: int,
) -> None:  # fmt: skip
    """Write the configuration of an archive of the directory to FOLDER, which may be the cluster's own.

    The settings are in conf.d/plainsql-archive.conf, which Debian's postgresql.conf includes; no other file of
    PostgreSQL's is changed. With them, PostgreSQL archives its WAL, at the latest after a minute. pgbackrest/ has the
    configuration of pgBackRest, with a key that is made once. Install the units plainsql-directory-archive* for full
    and differential backups. The settings take effect when PostgreSQL is restarted.

    A directory that shares its cluster with a cell is in the archive of the cell: `plainsql-server cell files
    --archive-to`.
    """
    config_folder = archive_config or str((folder / "pgbackrest").resolve())
    try:
        archive = ArchiveConfig(
            archive_to, config_folder, admin_role, data_folder, socket_directory, port, DIRECTORY_ARCHIVE
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    texts = {
        "conf.d/plainsql-archive.conf": archive.postgresql_conf(),
        "pgbackrest/pgbackrest.conf": archive.pgbackrest_conf(),
        **archive.unit_texts(),
    }
    for name, text in texts.items():
        place_file(folder / name, text)
    make_key(folder)
    remark(f"Wrote {', '.join(texts)} to {folder}.")
