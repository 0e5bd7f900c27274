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


@database_command.command("suspend")
@click.argument("database_id", metavar="ID")
def _suspend(database_id: str) -> None:
    """Suspend the database ID (db_…): it keeps its data and refuses every request, from a second from now on."""

    async def suspend(directory: Directory) -> DatabaseRecord:
        return await databases.suspend(directory, await databases.get(directory, database_id))

    remark(f"Suspended {with_directory(suspend).id}.")


@database_command.command("resume")
@click.argument("database_id", metavar="ID")
def _resume(database_id: str) -> None:
    """End the suspension of the database ID (db_…)."""

    async def resume(directory: Directory) -> DatabaseRecord:
        return await databases.resume(directory, await databases.get(directory, database_id))

    remark(f"Resumed {with_directory(resume).id}.")
