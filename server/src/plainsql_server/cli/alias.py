"""`plainsql-server alias`."""

from pathlib import Path

import click

from plainsql_server.operations.files.alias import Alias, TlsFiles, alias_config

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("alias")
@click.option("--upstream", "upstreams", multiple=True, required=True, help="Data plane as host:port; repeatable.")
@click.option("--control-url", required=True, help="Public URL of the control plane.")
@click.option("--listen", multiple=True, default=["443"], show_default=True, help="Value of nginx listen; repeatable.")
@click.option("--server-name", default="_", show_default=True, help="Value of nginx server_name.")
@click.option("--tls-cert-file", type=_FILE, help="TLS certificate chain of the alias. Without it, plain HTTP.")
@click.option("--tls-key-file", type=_FILE, help="Private key of that certificate.")
@click.option("--upstream-ca-file", type=_FILE, help="Use TLS to the data planes, and trust this CA.")
@click.option("--upstream-name", default="localhost", show_default=True, help="Name in the data planes' certificate.")
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
) -> None:
    """Print the nginx configuration of the alias. Include it in the http block.

    The alias serves the data plane's routes at a second address and redirects the control plane's routes. It adds a
    network hop, so clients that can choose should call the data plane directly.
    """
    if (tls_cert_file is None) != (tls_key_file is None):
        raise click.UsageError("Use --tls-cert-file and --tls-key-file together.")
    tls = TlsFiles(tls_cert_file, tls_key_file) if tls_cert_file and tls_key_file else None
    try:
        text = alias_config(
            Alias(listen, upstreams, control_url, server_name, tls, upstream_ca_file, upstream_name)
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(text, nl=False)
