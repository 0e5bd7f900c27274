"""`plainsql-server database …`."""

from datetime import datetime

import click

from plainsql_server.cli.output import confirm, json_option, print_one, print_records, remark, yes_option
from plainsql_server.cli.progress import Bar, size
from plainsql_server.cli.running import (
    chosen_database,
    database_argument,
    organization_option,
    owner_option,
    with_directory,
)
from plainsql_server.control_plane import adoption, branches, cells, databases, organizations
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.control_plane.names import check_expiry
from plainsql_server.core.actor import OPERATOR
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.move import Moved, move_database
from plainsql_server.settings import read_settings


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


@database_command.command("branch")
@organization_option
@click.argument("parent")
@click.argument("name")
@click.option(
    "--expires-at",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z"]),
    metavar="TIME",
    help="Delete the branch then, for good, such as 2027-01-31T00:00:00Z.",
)
def _branch(organization: str, parent: str, name: str, expires_at: datetime | None) -> None:
    """Create the database NAME as a copy of the database PARENT as it is now. Prints its ID.

    It is on the same cell and counts as a database of the organization. Requests to PARENT wait while it is copied.
    """

    async def create(directory: Directory) -> DatabaseRecord:
        owner = await organizations.get(directory, organization)
        check_expiry("a branch", expires_at)
        branch = NewBranch(await databases.get_named(directory, owner.id, parent), expires_at)
        return await branches.create(directory, owner.id, name, branch)

    created = with_directory(create)
    remark(f"Created the database {created.name!r}, a branch of {parent!r}.")
    click.echo(created.id)


@database_command.command("adopt")
@organization_option
@click.option("--cell", required=True, metavar="NAME-OR-ID", help="Cell that the database is on.")
@click.option("--name", required=True, help="Name that the organization's database gets.")
@click.argument("engine_name", metavar="ENGINE-NAME")
def _adopt(organization: str, cell: str, name: str, engine_name: str) -> None:
    """Adopt a database that is on a cell and not in the directory. Prints its ID.

    ENGINE-NAME is its name on the cell (d_…), which `doctor` shows. Its roles, settings and privileges are checked
    first. It keeps its content and gets a new ID; create new keys for it.
    """

    async def adopt(directory: Directory) -> DatabaseRecord:
        owner = await organizations.get(directory, organization)
        return await adoption.adopt(directory, owner.id, name, cell, engine_name)

    adopted = with_directory(adopt)
    remark(f"Adopted {engine_name} as the database {adopted.name!r}{', the default' if adopted.is_default else ''}.")
    click.echo(adopted.id)


@database_command.command("list")
@click.option("--org", "organization", metavar="NAME-OR-ID", help="List this organization's databases.")
@click.option("--cell", metavar="NAME-OR-ID", help="List the databases of this cell.")
@json_option
def _list(organization: str | None, cell: str | None, as_json: bool) -> None:
    """List the databases of an organization or of a cell, oldest first."""
    if (organization is None) == (cell is None):
        raise click.UsageError("Use either --org or --cell.")

    async def list_databases(directory: Directory) -> list[DatabaseRecord]:
        if cell is not None:
            return await databases.list_of_cell(directory, (await cells.get(directory, cell)).id)
        owner = await organizations.get(directory, organization or "")
        return await databases.list_(directory, owner.id)

    columns = ["id", "name", "state", "is_default", "cell_id", "engine_name", "created_at"]
    print_records(with_directory(list_databases, reads="database.list"), columns, as_json=as_json)


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
@owner_option
@database_argument
@json_option
def _suspend(organization: str | None, database: str, as_json: bool) -> None:
    """Suspend a database, by ID (db_…) or by name and --org. Within a second it refuses every request.

    It keeps its data.
    """

    async def suspend(directory: Directory) -> DatabaseRecord:
        return await databases.suspend(directory, await chosen_database(directory, organization, database))

    _show(with_directory(suspend), "Suspended", as_json=as_json)


@database_command.command("resume")
@owner_option
@database_argument
@json_option
def _resume(organization: str | None, database: str, as_json: bool) -> None:
    """Resume a suspended database, by ID (db_…) or by name and --org."""

    async def resume(directory: Directory) -> DatabaseRecord:
        return await databases.resume(directory, await chosen_database(directory, organization, database))

    _show(with_directory(resume), "Resumed", as_json=as_json)


@database_command.command("rename")
@owner_option
@database_argument
@click.argument("name", metavar="NEW-NAME")
@json_option
def _rename(organization: str | None, database: str, name: str, as_json: bool) -> None:
    """Rename a database. Its keys keep working; requests must use the new name, or its ID."""

    async def rename(directory: Directory) -> DatabaseRecord:
        return await databases.rename(
            directory, await chosen_database(directory, organization, database), name, OPERATOR
        )

    _show(with_directory(rename), f"Renamed to {name!r}:", as_json=as_json)


@database_command.command("delete")
@owner_option
@database_argument
@click.option("--permanently", is_flag=True, help="Drop it now, with no restore.")
@yes_option
@json_option
def _delete(*, organization: str | None, database: str, permanently: bool, yes: bool, as_json: bool) -> None:
    """Delete a database, by ID (db_…) or by name and --org. Within a second it refuses every request.

    It can be restored for PLAINSQL_DATABASE_RESTORE_S, and is then dropped.
    """
    confirm(f"Delete the database {database!r}{' permanently' if permanently else ''}?", yes=yes)
    restore_s = read_settings().database_restore_s

    async def delete(directory: Directory) -> DatabaseRecord:
        chosen = await chosen_database(directory, organization, database)
        deleted = await databases.delete(directory, chosen, restore_s=restore_s, restorable=not permanently)
        if not permanently:
            return deleted
        await databases.drop(directory, deleted)
        return await databases.get(directory, chosen.id)

    _show(with_directory(delete), "Deleted", as_json=as_json)


def _show(changed: DatabaseRecord, what: str, *, as_json: bool) -> None:
    remark(f"{what} {changed.id}.")
    if as_json:
        print_one(changed)
