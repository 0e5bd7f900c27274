"""`plainsql-server dev`."""

from pathlib import Path

import click

from plainsql_server.dev.command import run
from plainsql_server.dev.options import DevOptions
from plainsql_server.limits.tiers import TIERS

_PORT = click.IntRange(0, 65535)


@click.command("dev")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".plainsql"),
    show_default=True,
    help="Folder that holds everything; created if missing.",
)
@click.option("--data-port", type=_PORT, default=0, help="Port of the data plane; a free one by default.")
@click.option("--control-port", type=_PORT, default=0, help="Port of the control plane; a free one by default.")
@click.option("--alias-port", type=_PORT, default=0, help="Port of the alias; a free one by default.")
@click.option(
    "--tier", type=click.Choice(list(TIERS)), default="free", show_default=True, help="Tier of the organization."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of data plane processes."
)
@click.option("--no-tls", is_flag=True, help="Use plain HTTP instead of HTTPS with a development certificate.")
@click.option("--postgres-major", type=int, help="PostgreSQL major version; the newest installed by default.")
@click.pass_context
def dev_command(
    ctx: click.Context,
    *,
    directory: Path,
    data_port: int,
    control_port: int,
    alias_port: int,
    tier: str,
    workers: int,
    no_tls: bool,
    postgres_major: int | None,
) -> None:
    """Run the whole service on this machine, in one folder, until Ctrl-C.

    The first start creates an organization, a database and a key, and prints a curl command that uses them. Your data
    is kept for the next start.
    """
    options = DevOptions(
        directory=directory,
        data_port=data_port,
        control_port=control_port,
        alias_port=alias_port,
        tier=tier,
        workers=workers,
        tls=not no_tls,
        postgres_major=postgres_major,
    )
    ctx.exit(run(options))
