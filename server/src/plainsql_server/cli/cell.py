"""`plainsql-server cell …`."""

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import cells


@click.group("cell")
def cell_command() -> None:
    """Cells: the PostgreSQL clusters that hold customers' databases."""


@cell_command.command("add")
@click.argument("name")
@click.option(
    "--conninfo", required=True, metavar="KEYWORDS",
    help="How to reach it, in libpq's keywords without user, dbname and password: 'host=… port=… sslmode=…'.",
)  # fmt: skip
@click.option("--admin-role", required=True, metavar="ROLE", help="The superuser that provisioning logs in as.")
def _add(name: str, conninfo: str, admin_role: str) -> None:
    """Prepare a PostgreSQL cluster to hold customers' databases, and add it as the cell NAME. Prints its id.

    The cluster must be the service's alone: PUBLIC loses the right to connect to any database of it. Too old a
    minor release is refused. If it fails, run it again.
    """
    added = with_directory(lambda directory: cells.add(directory, name, conninfo, admin_role))
    remark(f"Added the cell {added.name!r}; it takes new databases from now on.")
    click.echo(added.id)


@cell_command.command("list")
@json_option
def _list(as_json: bool) -> None:
    """List every cell, oldest first."""
    records = with_directory(cells.list_)
    print_records(records, ["id", "name", "state", "conninfo", "admin_role", "created_at"], as_json=as_json)
