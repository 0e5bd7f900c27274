"""`plainsql-server health`: asks a process on this machine whether it works. For containers, which have no curl.

It imports little, because it runs every few seconds.
"""

import http.client
import ssl
from urllib.parse import urlsplit

import click

from plainsql_server.settings import Settings, read_settings

_TIMEOUT_S = 5.0
_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@click.command("health")
@click.option("--ready", is_flag=True, help="Ask whether it can answer requests, not only whether it runs.")
@click.argument("url", required=False)
def health_command(ready: bool, url: str | None) -> None:
    """Ask a plane whether it is live, or ready. Exits with 1 if it isn't.

    URL is the plane's address, such as https://127.0.0.1:8401. By default, it is that of the data plane on this
    machine. The certificate is not verified; `plainsql-server doctor` does that.
    """
    path = "/health/ready" if ready else "/health/live"
    address = url or _own_url(read_settings())
    try:
        status = _status(address, path)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise click.ClickException(f"{address} does not answer: {error}.") from error
    if status != http.HTTPStatus.OK:
        raise click.ClickException(f"{address}{path} returned {status}.")
    click.echo("ready" if ready else "live")


def _own_url(settings: Settings) -> str:
    host = _LOOPBACKS.get(settings.data_host, settings.data_host)
    scheme = "https" if settings.tls_cert_file else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.data_port}"


def _status(url: str, path: str) -> int:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the URL must begin with http:// or https://")
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        if parts.scheme == "http"
        else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=_unverified())
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _unverified() -> ssl.SSLContext:
    """TLS without a check of the certificate, which is for the plane's public name. No secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
