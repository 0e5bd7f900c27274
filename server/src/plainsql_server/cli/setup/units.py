"""`plainsql-server units`: write the systemd units of the planes, of the backups and of the renewal of certificates."""

from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.setup.program import own_program, program_option
from plainsql_server.operations.files.placing import place_file
from plainsql_server.operations.files.units import CONFIG_FOLDER, unit_texts


@click.command("units")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="/etc/systemd/system")
@program_option
@click.option(
    "--config-folder", default=CONFIG_FOLDER, show_default=True, help="Folder with the environment files and keys."
)
def units_command(folder: Path, program: str | None, config_folder: str) -> None:
    """Write the systemd units of both planes, of backups and of renewals to FOLDER (default: /etc/systemd/system).

    The planes run as the system user `plainsql`, with the variables in data.env and control.env. Backups run every
    night as the user `plainsql-backup`, with those in backup.env. Every week, root renews certificates that are
    about to expire. `cell files` writes the unit of the guard.
    """
    try:
        texts = unit_texts(program or own_program(), config_folder)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for name, text in texts.items():
        place_file(folder / name, text)
    remark(f"Wrote {', '.join(texts)} to {folder}. Run `systemctl daemon-reload`.")
