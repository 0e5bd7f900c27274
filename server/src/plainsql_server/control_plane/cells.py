"""Adds, changes and lists cells, and sets their states, capacity and tiers.

A cell is added to the directory only after it was prepared and checked. `moves.py` moves databases between cells.
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
    """Prepares a cell and adds it, active. If it fails, it can be run again.

    With an organization, only that organization uses the cell. `max_databases` and `tiers` limit the databases that it
    accepts. `conninfo` is libpq's, without user and dbname. Raises RequestError if the cell is not suitable (its
    version, admin role or connection string), EngineError if it is unavailable, ConflictError if the name is taken.
    """
    check_cell_name(name)
    provisioning.check_conninfo(conninfo)
    await provisioning.prepare_cell(conninfo, admin_role)
    return await cells.insert(
        directory, new_id(Kind.CELL), name, conninfo, admin_role,
        organization_id=organization_id, by=OPERATOR, max_databases=max_databases, tiers=tiers,
    )  # fmt: skip


async def set_address(directory: Directory, name: str, conninfo: str, admin_role: str) -> CellRecord:
    """Prepares a cell at a new address and stores that address. It must be the same cluster: nothing is copied.

    Raises AccessError if there is no such cell, and the errors of `add` if it is not suitable.
    """
    provisioning.check_conninfo(conninfo)
    cell = await get(directory, name)
    await provisioning.prepare_cell(conninfo, admin_role)
    return await cells.set_address(directory, cell.id, conninfo, admin_role)


async def get(directory: Directory, name: str) -> CellRecord:
    """The cell with that name or id. Raises AccessError if there is none."""
    cell = await cells.find(directory, name)
    if cell is None:
        raise AccessError("cell_not_found", f"There is no cell {name!r}.")
    return cell


async def set_state(directory: Directory, name: str, state: CellState) -> CellRecord:
    """Sets a cell's state. Every node applies it within a second.

    A cell that was down is prepared again first, so nothing is sent to a cell that is not suitable. Raises
    ConflictError if the transition is not allowed, and the errors of `add` if the cell is not suitable.
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
        raise ConflictError("wrong_state", f"The cell {now.name!r} is {now.state} and can't become {state}.")
    return changed


async def set_share(
    directory: Directory, name: str, max_databases: int | None = None, tiers: Sequence[str] | None = None
) -> CellRecord:
    """Sets how many databases a cell accepts, and of which tiers. None means no change; no tiers means all."""
    cell = await get(directory, name)
    return await cells.set_share(
        directory,
        cell.id,
        cell.max_databases if max_databases is None else max_databases,
        cell.tiers if tiers is None else (tiers or None),
    )


async def list_(directory: Directory) -> list[CellRecord]:
    """All cells, oldest first."""
    return await cells.list_(directory)
