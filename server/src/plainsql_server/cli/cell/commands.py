"""`plainsql-server cell …`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import click

from plainsql_server.cli.cell.files import files_command
from plainsql_server.cli.cell.guard import guard_command
from plainsql_server.cli.cell.ha_files import ha_files_command
from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import cells, organizations
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.counts import databases_by_cell
from plainsql_server.limits.tiers import TIERS

_room_option = click.option("--room", type=click.IntRange(min=0), help="How many databases it takes.")
_tier_option = click.option(
    "--tier", "tiers", type=click.Choice(list(TIERS)), multiple=True,
    help="A tier whose new databases go there; repeatable. Without it, every tier's.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Listed:
    """A cell, and how many databases it has."""

    id: str
    name: str
    state: str
    databases: int
    room: int
    tiers: tuple[str, ...] | None
    organization_id: str | None
    conninfo: str
    admin_role: str
    created_at: datetime

    @classmethod
    def of(cls, cell: CellRecord, databases: Mapping[str, int]) -> "_Listed":
        return cls(
            cell.id, cell.name, cell.state, sum(databases.values()), cell.room, cell.tiers, cell.organization_id,
            cell.conninfo, cell.admin_role, cell.created_at,
        )  # fmt: skip


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
@_room_option
@_tier_option
def _add(
    *, name: str, conninfo: str, admin_role: str, org: str | None, room: int | None, tiers: tuple[str, ...]
) -> None:
    """Prepare a PostgreSQL cluster to hold customers' databases, and add it as the cell NAME. Prints its id.

    The cluster must be the service's alone: PUBLIC loses the right to connect to any database of it. Too old a
    minor release is refused. If it fails, run it again.
    """

    async def add(directory: Directory) -> CellRecord:
        organization = None if org is None else (await organizations.get(directory, org)).id
        return await cells.add(directory, name, conninfo, admin_role, organization, room=room, tiers=tiers or None)

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


@cell_command.command("set")
@click.argument("name")
@click.option(
    "--state", type=click.Choice([str(each) for each in CellState]),
    help="active: takes new databases. full: keeps what it has. draining: is to be emptied. down: is away, and its"
    " databases' requests get 503 at once.",
)  # fmt: skip
@_room_option
@_tier_option
@click.option("--every-tier", is_flag=True, help="Take databases of every tier again.")
def _set(name: str, state: str | None, room: int | None, tiers: tuple[str, ...], every_tier: bool) -> None:
    """Change the state of the cell NAME, or what it takes. Every node heeds that within a second.

    What the cell has stays: move it with `database move`.
    """
    if tiers and every_tier:
        raise click.UsageError("--tier and --every-tier exclude each other.")

    async def change(directory: Directory) -> CellRecord:
        cell = await cells.get(directory, name)
        if state is not None:
            cell = await cells.set_state(directory, name, CellState(state))
        if room is not None or tiers or every_tier:
            cell = await cells.set_share(directory, name, room, tiers if tiers or every_tier else None)
        return cell

    changed = with_directory(change)
    of = f"of the tiers {', '.join(changed.tiers)}" if changed.tiers else "of every tier"
    remark(f"The cell {changed.name!r} is {changed.state}, with room for {changed.room} databases {of}.")


@cell_command.command("list")
@json_option
def _list(as_json: bool) -> None:
    """List every cell, oldest first."""

    async def listed(directory: Directory) -> list[_Listed]:
        counted = await databases_by_cell(directory)
        return [_Listed.of(cell, counted.get(cell.id, {})) for cell in await cells.list_(directory)]

    columns = [
        "id", "name", "state", "databases", "room", "tiers", "organization_id", "conninfo", "admin_role", "created_at",
    ]  # fmt: skip
    print_records(with_directory(listed), columns, as_json=as_json)
