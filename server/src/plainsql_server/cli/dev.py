"""`plainsql-server dev`."""

from collections.abc import Callable
from pathlib import Path

import click

from plainsql_server.dev.command import run
from plainsql_server.dev.kept_ports import USUAL_PORTS
from plainsql_server.dev.options import DEFAULT_DIRECTORY, DevOptions
from plainsql_server.limits.tiers import TIERS

_PORT = click.IntRange(0, 65535)


def _port_option(option: str, of: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    text = f"Port of {of}; {USUAL_PORTS[option]} by default, or another one if it is in use. 0 for any free port."
    return click.option(option, type=_PORT, help=text)


@click.command("dev")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Folder that holds everything; created if missing.",
)
@_port_option("--data-port", "the data plane")
@_port_option("--control-port", "the control plane")
@_port_option("--alias-port", "the alias")
@click.option(
    "--tier", type=click.Choice(list(TIERS)),
    help="Tier of the organization; dedicated by default, which has no rate limit. Kept for later starts.",
)  # fmt: skip
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
    data_port: int | None,
    control_port: int | None,
    alias_port: int | None,
    tier: str | None,
    workers: int,
    no_tls: bool,
    postgres_major: int | None,
) -> None:
    """Run the whole service on this machine, in one folder, until Ctrl-C.

    The first start creates an organization, a database and a key, and prints commands that use them. Your data, the
    ports and the tier are kept for the next start.
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
