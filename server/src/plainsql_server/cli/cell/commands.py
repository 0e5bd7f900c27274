"""`plainsql-server cell …`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import click

from plainsql_server.cli.cell.extensions import extensions_command
from plainsql_server.cli.cell.files import files_command
from plainsql_server.cli.cell.guard import guard_command
from plainsql_server.cli.cell.ha_files import ha_files_command
from plainsql_server.cli.cell.init import init_command
from plainsql_server.cli.output import confirm, json_option, print_records, remark, yes_option
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import cells, organizations
from plainsql_server.directory import cells as stored_cells
from plainsql_server.directory.cells import CellChange, CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.counts import databases_by_cell
from plainsql_server.limits.tiers import TIERS

_max_databases_option = click.option(
    "--max-databases",
    type=click.IntRange(min=0),
    help="Maximum number of databases on the cell; 1,000 for a new cell.",
)
_tier_option = click.option(
    "--tier", "tiers", type=click.Choice(list(TIERS)), multiple=True,
    help="Accept new databases only from organizations of this tier; repeatable. A new cell accepts every tier.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Listed:
    """A cell and its number of databases."""

    id: str
    name: str
    state: str
    databases: int
    max_databases: int
    tiers: tuple[str, ...] | None
    organization_id: str | None
    conninfo: str
    admin_role: str
    created_at: datetime

    @classmethod
    def of(cls, cell: CellRecord, databases: Mapping[str, int]) -> "_Listed":
        return cls(
            cell.id, cell.name, cell.state, sum(databases.values()), cell.max_databases, cell.tiers,
            cell.organization_id, cell.conninfo, cell.admin_role, cell.created_at,
        )  # fmt: skip


@click.group("cell")
def cell_command() -> None:
    """Manage cells, the PostgreSQL clusters that hold customers' databases."""


_CONNINFO_HELP = "How to connect: libpq keywords without user, dbname and password, such as 'host=… port=… sslmode=…'."
_ADMIN_ROLE_HELP = "Superuser that the service logs in as to provision databases."


@cell_command.command("add")
@click.argument("name")
@click.option("--conninfo", required=True, metavar="KEYWORDS", help=_CONNINFO_HELP)
@click.option("--admin-role", required=True, metavar="ROLE", help=_ADMIN_ROLE_HELP)
@click.option("--org", metavar="ORG", help="Dedicate the cell to this organization: all its new databases go there.")
@_max_databases_option
@_tier_option
@click.option("--if-missing", is_flag=True, help="Succeed without a change if there is a cell NAME.")
def _add(
    *, name: str, conninfo: str, admin_role: str, org: str | None, max_databases: int | None, tiers: tuple[str, ...],
    if_missing: bool,
) -> None:  # fmt: skip
    """Prepare a PostgreSQL cluster for customers' databases and add it as the cell NAME. Prints its ID.

    Only the service may use the cluster: PUBLIC loses the CONNECT privilege on every database. Outdated minor releases
    are rejected. If the command fails, run it again.
    """

    async def add(directory: Directory) -> CellRecord:
        organization = None if org is None else (await organizations.get(directory, org)).id
        return await cells.add(
            directory, name, conninfo, admin_role, organization, max_databases=max_databases, tiers=tiers or None
        )

    if if_missing and (existing := with_directory(lambda directory: stored_cells.find(directory, name))):
        remark(f"There is a cell {existing.name!r} already.")
        click.echo(existing.id)
        return
    added = with_directory(add)
    remark(f"Added the cell {added.name!r}. It now accepts new databases.")
    click.echo(added.id)


cell_command.add_command(extensions_command)
cell_command.add_command(files_command)
cell_command.add_command(init_command)
cell_command.add_command(ha_files_command)
cell_command.add_command(guard_command)


@cell_command.command("set")
@click.argument("name", metavar="NAME-OR-ID")
@click.option(
    "--state", type=click.Choice([str(each) for each in CellState if each is not CellState.REMOVED]),
    help="active: accepts new databases. full: accepts no new databases. draining: the same, while you move its"
    " databases away. down: requests to its databases get 503 at once. lost: the same, and its databases may be"
    " restored on other cells.",
)  # fmt: skip
@_max_databases_option
@_tier_option
@click.option("--every-tier", is_flag=True, help="Accept new databases from every tier again.")
@click.option(
    "--conninfo", metavar="KEYWORDS", help=f"{_CONNINFO_HELP} Nothing is copied: it must be the same cluster."
)
@click.option("--admin-role", metavar="ROLE", help=f"{_ADMIN_ROLE_HELP} Only with --conninfo.")
def _set(
    *, name: str, state: str | None, max_databases: int | None, tiers: tuple[str, ...], every_tier: bool,
    conninfo: str | None, admin_role: str | None,
) -> None:  # fmt: skip
    """Change a cell's state, what it accepts, or its address. Every node applies the change within a second.

    If one of several changes is refused, none is made.

    The cell keeps its databases; use `database move` to move one. `set --conninfo` checks and prepares the cluster as
    `add` does.
    """
    if tiers and every_tier:
        raise click.UsageError("Use either --tier or --every-tier, not both.")
    if admin_role is not None and conninfo is None:
        raise click.UsageError("--admin-role needs --conninfo.")

    change = CellChange(
        state=None if state is None else CellState(state), conninfo=conninfo, admin_role=admin_role,
        max_databases=max_databases, tiers=tiers if tiers or every_tier else None,
    )  # fmt: skip
    changed = with_directory(lambda directory: cells.change(directory, name, change))
    of = f"of the tiers {', '.join(changed.tiers)}" if changed.tiers else "of every tier"
    remark(f"The cell {changed.name!r} is {changed.state} and may hold {changed.max_databases} databases {of}.")
    if conninfo is not None:
        remark(f"Its connection string is {changed.conninfo!r}.")


@cell_command.command("remove")
@click.argument("name", metavar="NAME-OR-ID")
@yes_option
def _remove(name: str, yes: bool) -> None:
    """Remove a cell from the directory. Nothing on the cell is changed.

    A cell that holds databases is not removed, unless it is lost. The databases of a lost cell stay in the directory
    with their keys, unavailable, until you restore them with `restore --replace --lost` or delete them.
    """
    confirm(f"Remove the cell {name!r}?", yes=yes)
    removed, held = with_directory(lambda directory: cells.remove(directory, name))
    remark(f"Removed the cell {removed.name!r}." + (f" {held} databases were lost with it." if held else ""))


@cell_command.command("list")
@json_option
def _list(as_json: bool) -> None:
    """List every cell, oldest first."""

    async def listed(directory: Directory) -> list[_Listed]:
        counted = await databases_by_cell(directory)
        return [_Listed.of(cell, counted.get(cell.id, {})) for cell in await cells.list_(directory)]

    columns = [
        "id", "name", "state", "databases", "max_databases", "tiers", "organization_id", "conninfo", "admin_role",
        "created_at",
    ]  # fmt: skip
    print_records(with_directory(listed), columns, as_json=as_json)
