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
    """Manage customers' databases."""


@database_command.command("create")
@organization_option
@click.argument("name")
def _create(organization: str, name: str) -> None:
    """Create the database NAME on the cell with the most free capacity. Prints its ID.

    An organization's first database becomes its default. If the command fails or is interrupted, run it again: it
    resumes where it stopped.
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
@click.option("--to", required=True, metavar="CELL", help="Cell to move it to, by name or ID.")
@click.option("--hold", is_flag=True, help="Hold requests for the whole move, not only for the switch.")
def _move(organization: str, name: str, to: str, hold: bool) -> None:
    """Move the database NAME to another cell while it is in use.

    The database is copied while requests continue. Then requests to it wait for about a second, while the last changes
    are copied, and continue on the new cell. The database keeps its ID, name, keys and content. If the move fails, is
    interrupted or crashes, the database stays where it was, and you can run the command again.
    """

    async def move(directory: Directory, bar: Bar) -> Moved:
        owner = await organizations.get(directory, organization)
        database = await databases.get_named(directory, owner.id, name)
        return await move_database(directory, database, to, bar, hold=hold)

    with Bar() as bar:
        moved = with_directory(lambda directory: move(directory, bar))
    remark(
        f"Moved {name!r} to {to!r}: copied {size(moved.copied_bytes)}, applied {moved.followed_rows} changed rows in"
        f" {moved.rounds} rounds. Requests waited for {moved.stopped_s:.2f} s."
    )


@database_command.command("suspend")
@click.argument("database_id", metavar="ID")
def _suspend(database_id: str) -> None:
    """Suspend the database ID (db_…). Within a second it refuses every request. It keeps its data."""

    async def suspend(directory: Directory) -> DatabaseRecord:
        return await databases.suspend(directory, await databases.get(directory, database_id))

    remark(f"Suspended {with_directory(suspend).id}.")


@database_command.command("resume")
@click.argument("database_id", metavar="ID")
def _resume(database_id: str) -> None:
    """Resume the suspended database ID (db_…)."""

    async def resume(directory: Directory) -> DatabaseRecord:
        return await databases.resume(directory, await databases.get(directory, database_id))

    remark(f"Resumed {with_directory(resume).id}.")
