"""`plainsql-server database …`."""

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import organization_option, with_directory
from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord


@click.group("database")
def database_command() -> None:
    """Customers' databases."""


@database_command.command("create")
@organization_option
@click.argument("name")
def _create(organization: str, name: str) -> None:
    """Create the database NAME on the emptiest cell. Prints its id.

    An organization's first database becomes its default. If it fails or is interrupted, run it again: it
    finishes what was begun.
    """

    async def create(directory: Directory) -> DatabaseRecord:
        owner = await organizations.get(directory, organization)
        return await databases.create(directory, owner.id, name)

    created = with_directory(create)
    remark(f"Created the database {created.name!r}{', the default' if created.is_default else ''}.")
    click.echo(created.id)


@database_command.command("list")
@organization_option
@json_option
def _list(organization: str, as_json: bool) -> None:
    """List an organization's databases, oldest first."""

    async def list_databases(directory: Directory) -> list[DatabaseRecord]:
        owner = await organizations.get(directory, organization)
        return await databases.list_(directory, owner.id)

    columns = ["id", "name", "state", "is_default", "cell_id", "engine_name", "created_at"]
    print_records(with_directory(list_databases), columns, as_json=as_json)
