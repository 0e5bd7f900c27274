"""`plainsql-server database …`."""

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.progress import Bar, size
from plainsql_server.cli.running import organization_option, with_directory
from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.move import Moved, move_database


@click.group("database")
def database_command() -> None:
    """Customers' databases."""


@database_command.command("create")
@organization_option
@click.argument("name")
def _create(organization: str, name: str) -> None:
    """Create the database NAME on the cell with most room for it. Prints its id.

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


@database_command.command("move")
@organization_option
@click.argument("name")
@click.option("--to", required=True, metavar="CELL", help="The cell to move it to, by name or id.")
@click.option("--hold", is_flag=True, help="Have requests wait from the beginning on, and not only for the switch.")
def _move(organization: str, name: str, to: str, hold: bool) -> None:
    """Move the database NAME to another cell while it is used.

    It is copied while everything goes on; then requests to it wait for about a second, in which the last changes
    are brought over, and go on at the new cell. It keeps its id, name, keys and content. If it fails, is
    interrupted or dies, the database is where it was, and you may run it again.
    """

    async def move(directory: Directory, bar: Bar) -> Moved:
        owner = await organizations.get(directory, organization)
        database = await databases.get_by_name(directory, owner.id, name)
        return await move_database(directory, database, to, bar, hold=hold)

    with Bar() as bar:
        moved = with_directory(lambda directory: move(directory, bar))
    remark(
        f"Moved {name!r} to {to!r}: {size(moved.copied_bytes)} copied, {moved.followed_rows} rows followed in"
        f" {moved.rounds} rounds; requests waited for {moved.stopped_s:.2f} s."
    )


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
