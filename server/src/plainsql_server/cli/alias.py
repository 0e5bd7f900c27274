"""`plainsql-server alias`."""

from pathlib import Path

import click

from plainsql_server.operations.files.alias import Alias, TlsFiles, alias_config

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("alias")
@click.option("--upstream", "upstreams", multiple=True, required=True, help="host:port of a data plane; repeatable.")
@click.option("--control-url", required=True, help="Public address of the control plane.")
@click.option("--listen", multiple=True, default=["443"], show_default=True, help="As nginx' listen; repeatable.")
@click.option("--server-name", default="_", show_default=True, help="As nginx' server_name.")
@click.option("--tls-cert-file", type=_FILE, help="Certificate chain that the alias shows; without it, plain HTTP.")
@click.option("--tls-key-file", type=_FILE, help="Private key of that certificate.")
@click.option("--upstream-ca-file", type=_FILE, help="Speak TLS to the data planes, signed by this authority.")
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
    """Print nginx' configuration for the alias, to be included in its http block.

    The alias serves the data plane's routes once more, and redirects those of the control plane. nginx adds a hop,
    so clients that can choose use the data plane itself.
    """
    if (tls_cert_file is None) != (tls_key_file is None):
        raise click.UsageError("--tls-cert-file and --tls-key-file go together.")
    tls = TlsFiles(tls_cert_file, tls_key_file) if tls_cert_file and tls_key_file else None
    try:
        text = alias_config(
            Alias(listen, upstreams, control_url, server_name, tls, upstream_ca_file, upstream_name)
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(text, nl=False)
