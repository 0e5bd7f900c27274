"""`plainsql-server secrets …`."""

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.running import with_directory
from plainsql_server.core.actor import OPERATOR
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sealing.keyring import new_key
from plainsql_server.directory.sealing.rows import Resealed, reseal_all
from plainsql_server.settings import SettingsError, read_settings


@click.group("secrets")
def secrets_command() -> None:
    """Manage the keys that seal databases' record secrets in the directory, PLAINSQL_SECRETS_KEYS."""


@secrets_command.command("new-key")
def _new_key() -> None:
    """Print a new random key for PLAINSQL_SECRETS_KEYS. It is not stored anywhere."""
    click.echo(new_key())


@secrets_command.command("rotate")
@click.pass_context
def _rotate(ctx: click.Context) -> None:
    """Seal the record secrets of all databases with the first key of PLAINSQL_SECRETS_KEYS.

    The service can run meanwhile, and you can run it again at any time. All planes must know the key already: see the
    operator's guide. Exit code 1: some secrets can't be sealed, which are listed and unchanged, or were stored with
    another key meanwhile.
    """
    if read_settings().secrets_keys is None:
        raise SettingsError("`PLAINSQL_SECRETS_KEYS` is not set. `plainsql-server secrets new-key` prints a key.")

    async def rotate(directory: Directory) -> tuple[str, Resealed]:
        return directory.secrets.key_ids[0], await reseal_all(directory, OPERATOR)

    key, resealed = with_directory(rotate)
    remark(f"Sealed {resealed.changed} secrets with the key {key}.")
    for database_id, why in resealed.unusable.items():
        remark(f"{database_id}: {why}")
    if resealed.unusable:
        remark(f"{len(resealed.unusable)} secrets can't be sealed.")
    if resealed.others:
        remark(
            f"{resealed.others} secrets are not sealed with this key: a process stores new ones with another key, or"
            " without one. Make this key the first one on every machine, reload the planes, and run this again."
        )
    if resealed.unusable or resealed.others:
        ctx.exit(1)
    remark("All secrets are sealed with this key.")
