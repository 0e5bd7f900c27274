"""`plainsql-server alias`."""

import asyncio
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.running import with_directory
from plainsql_server.core.tasks import end
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sharing import processes
from plainsql_server.operations.files.alias import Alias, TlsFiles, alias_config
from plainsql_server.operations.files.follow_processes import Follower

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("alias")
@click.option("--upstream", "upstreams", multiple=True,
              help="Data plane as host:port; repeatable. Default: the running processes' own ports.")  # fmt: skip
@click.option("--control-url", required=True, help="Public URL of the control plane.")
@click.option("--listen", multiple=True, default=["443"], show_default=True, help="Value of nginx listen; repeatable.")
@click.option("--server-name", default="_", show_default=True, help="Value of nginx server_name.")
@click.option("--tls-cert-file", type=_FILE, help="TLS certificate chain of the alias. Without it, plain HTTP.")
@click.option("--tls-key-file", type=_FILE, help="Private key of that certificate.")
@click.option("--upstream-ca-file", type=_FILE, help="Use TLS to the data planes, and trust this CA.")
@click.option("--upstream-crl-file", type=_FILE, help="With --upstream-ca-file: its list of revoked certificates.")
@click.option("--upstream-name", default="localhost", show_default=True, help="Name in the data planes' certificate.")
@click.option("--follow", "followed_file", type=_FILE, metavar="FILE",
              help="Write FILE instead, again whenever processes start or stop, until SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--reload-command", default="nginx -s reload", show_default=True, metavar="COMMAND",
              help="With --follow: run this after each change.")  # fmt: skip
def alias_command(
    *,
    upstreams: tuple[str, ...],
    control_url: str,
    listen: tuple[str, ...],
    server_name: str,
    tls_cert_file: Path | None,
    tls_key_file: Path | None,
    upstream_ca_file: Path | None,
    upstream_name: str,
    upstream_crl_file: Path | None,
    followed_file: Path | None,
    reload_command: str,
) -> None:
    """Print the nginx configuration of the alias. Include it in the http block.

    The alias serves the data plane's routes at a second address and redirects the control plane's routes. It adds a
    network hop, so clients that can choose should call the data plane directly.
    """
    if (tls_cert_file is None) != (tls_key_file is None):
        raise click.UsageError("Use --tls-cert-file and --tls-key-file together.")
    if upstream_crl_file and not upstream_ca_file:
        raise click.UsageError("--upstream-crl-file needs --upstream-ca-file.")
    if followed_file and upstreams:
        raise click.UsageError("--follow finds the data planes itself. Omit --upstream.")
    tls = TlsFiles(tls_cert_file, tls_key_file) if tls_cert_file and tls_key_file else None

    def render(addresses: Sequence[str]) -> str:
        return alias_config(
            Alias(
                listen, addresses, control_url, server_name, tls, upstream_ca_file, upstream_name, upstream_crl_file
            )
        )  # fmt: skip

    try:
        # Also before it follows, so that an option that nginx would misread is refused now.
        text = render(upstreams or (["127.0.0.1:0"] if followed_file else _live()))
        command = shlex.split(reload_command)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if followed_file is None:
        click.echo(text, nl=False)
        return
    if not command:
        raise click.UsageError("--reload-command is empty.")
    file = followed_file.absolute()
    remark(f"Following the data plane's processes in {file}. Ctrl-C quits.")
    with_directory(lambda directory: _until_signalled(Follower(directory, file, render, command, remark)))
    remark("Stopped.")


def _live() -> list[str]:
    found = with_directory(_addresses)
    if not found:
        raise click.ClickException(
            "No data plane process with a port of its own is running. Set PLAINSQL_WORKER_PORT, or use --upstream."
        )
    return found


async def _addresses(directory: Directory) -> list[str]:
    async with directory.connection() as connection:
        return await processes.addresses(connection)


async def _until_signalled(follower: Follower) -> None:
    task = asyncio.create_task(follower.run())
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    task.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    await end(task)
    if not task.cancelled():
        task.result()
