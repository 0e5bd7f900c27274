"""Rules about cells: one is known to the directory only once it is fit to hold databases.

Owns adding, moving and listing cells, their states and what they take. Refuses to move databases between them.
"""

from collections.abc import Sequence

from plainsql_server.control_plane.names import check_cell_name
from plainsql_server.control_plane.states import CELL_TRANSITIONS
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError, ConflictError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import provisioning


async def add(
    directory: Directory, name: str, conninfo: str, admin_role: str, organization_id: str | None = None, *,
    max_databases: int | None = None, tiers: Sequence[str] | None = None,
) -> CellRecord:  # fmt: skip
    """The new cell, prepared and active; for one organization alone, if one is named. May be run again if it failed.

    It takes so many databases, of those tiers, if that is said.

    `conninfo` is libpq's, without user and dbname. Raises RequestError if the cell is not fit (its version,
    its admin role, its connection string), EngineError if it is away, ConflictError if the name is taken.
    """
    check_cell_name(name)
    provisioning.check_conninfo(conninfo)
    await provisioning.prepare_cell(conninfo, admin_role)
    return await cells.insert(
        directory, new_id(Kind.CELL), name, conninfo, admin_role,
        organization_id=organization_id, by=OPERATOR, max_databases=max_databases, tiers=tiers,
    )  # fmt: skip


async def set_address(directory: Directory, name: str, conninfo: str, admin_role: str) -> CellRecord:
    """The cell, prepared, with a new address. It must be the same cluster: nothing is copied.

    Raises AccessError if there is no such cell, and what `add` raises if it is not fit.
    """
    provisioning.check_conninfo(conninfo)
    cell = await get(directory, name)
    await provisioning.prepare_cell(conninfo, admin_role)
    return await cells.set_address(directory, cell.id, conninfo, admin_role)


async def get(directory: Directory, name: str) -> CellRecord:
    """The cell of that name or id. Raises AccessError if there is none."""
    cell = await cells.find(directory, name)
    if cell is None:
        raise AccessError("cell_not_found", f"There is no cell {name!r}.")
    return cell


async def set_state(directory: Directory, name: str, state: CellState) -> CellRecord:
    """The cell, in that state from now on. Heeded by every node within a second.

    One that is back from being down is prepared again, so that nothing is sent to a cell that is not fit. Raises
    ConflictError if that state cannot follow, and what `add` raises if the cell is not fit.
    """
    cell = await get(directory, name)
    if cell.state is state:
        return cell
    possible = [each for each, next_ones in CELL_TRANSITIONS.items() if state in next_ones]
    if cell.state is CellState.DOWN and cell.state in possible:
        await provisioning.prepare_cell(cell.conninfo, cell.admin_role)
    changed = await cells.set_state(directory, cell.id, state, only_from=possible)
    if changed is None:
        now = await get(directory, cell.id)
        raise ConflictError("wrong_state", f"The cell {now.name!r} is {now.state}, and cannot become {state}.")
    return changed


async def set_share(
    directory: Directory, name: str, max_databases: int | None = None, tiers: Sequence[str] | None = None
) -> CellRecord:
    """The cell, which takes so many databases, of those tiers, from now on; what is not said stays. No tiers: all."""
    cell = await get(directory, name)
    return await cells.set_share(
        directory,
        cell.id,
        cell.max_databases if max_databases is None else max_databases,
        cell.tiers if tiers is None else (tiers or None),
    )


async def list_(directory: Directory) -> list[CellRecord]:
    """Every cell, oldest first."""
    return await cells.list_(directory)
