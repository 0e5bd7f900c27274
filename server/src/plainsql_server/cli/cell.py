"""`plainsql-server cell …`."""

import click

from plainsql_server.cli.cell_files import files_command
from plainsql_server.cli.cell_guard import guard_command
from plainsql_server.cli.cell_ha_files import ha_files_command
from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import cells, organizations
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory


@click.group("cell")
def cell_command() -> None:
    """Cells: the PostgreSQL clusters that hold customers' databases."""


_conninfo_option = click.option(
    "--conninfo", required=True, metavar="KEYWORDS",
    help="How to reach it, in libpq's keywords without user, dbname and password: 'host=… port=… sslmode=…'.",
)  # fmt: skip
_admin_option = click.option(
    "--admin-role", required=True, metavar="ROLE", help="The superuser that provisioning logs in as."
)


@cell_command.command("add")
@click.argument("name")
@_conninfo_option
@_admin_option
@click.option(
    "--org", metavar="ORG", help="The only organization whose databases go there, and whose new ones go nowhere else."
)
def _add(name: str, conninfo: str, admin_role: str, org: str | None) -> None:
    """Prepare a PostgreSQL cluster to hold customers' databases, and add it as the cell NAME. Prints its id.

    The cluster must be the service's alone: PUBLIC loses the right to connect to any database of it. Too old a
    minor release is refused. If it fails, run it again.
    """

    async def add(directory: Directory) -> CellRecord:
        organization = None if org is None else (await organizations.get(directory, org)).id
        return await cells.add(directory, name, conninfo, admin_role, organization)

    added = with_directory(add)
    remark(f"Added the cell {added.name!r}; it takes new databases from now on.")
    click.echo(added.id)


@cell_command.command("move")
@click.argument("name", metavar="NAME-OR-ID")
@_conninfo_option
@_admin_option
def _move(name: str, conninfo: str, admin_role: str) -> None:
    """Reach a cell another way from now on: its server has a new address. Prepares it as `add` does.

    The server must be the same one, or have the same databases: nothing is copied. The planes follow by themselves.
    """
    moved = with_directory(lambda directory: cells.move(directory, name, conninfo, admin_role))
    remark(f"The cell {moved.name!r} is reached by {moved.conninfo!r} from now on.")


cell_command.add_command(files_command)
cell_command.add_command(ha_files_command)
cell_command.add_command(guard_command)


@cell_command.command("list")
@json_option
def _list(as_json: bool) -> None:
    """List every cell, oldest first."""
    records = with_directory(cells.list_)
    print_records(
        records, ["id", "name", "state", "organization_id", "conninfo", "admin_role", "created_at"], as_json=as_json
    )
