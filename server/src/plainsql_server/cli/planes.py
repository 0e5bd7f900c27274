"""`plainsql-server data` and `plainsql-server control`."""

import click

from plainsql_server.assembly import serve_control, serve_data
from plainsql_server.settings import read_settings


@click.command("data")
def data_command() -> None:
    """Run the data plane, which executes customers' SQL, until SIGTERM or Ctrl-C.

    It listens on PLAINSQL_DATA_HOST and PLAINSQL_DATA_PORT. It is stateless, so you can run as many as you need.
    """
    serve_data(read_settings())


@click.command("control")
def control_command() -> None:
    """Run the control plane, which manages organizations, keys and databases, until SIGTERM or Ctrl-C.

    It listens on PLAINSQL_CONTROL_HOST and PLAINSQL_CONTROL_PORT. It is stateless, so you can run as many as you need.
    """
    serve_control(read_settings())
