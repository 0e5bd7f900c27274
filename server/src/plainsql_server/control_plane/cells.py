"""Adds, changes, removes and lists cells, and sets their states, capacity, tiers and extensions.

A cell is added to the directory only after it was prepared and checked. `moves.py` moves databases between cells.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from psycopg import AsyncConnection

from plainsql_server.control_plane.names import check_cell_name
from plainsql_server.control_plane.states import CELL_TRANSITIONS
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError, ConflictError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import audit, cells
from plainsql_server.directory.cells import OUT_OF_SERVICE, CellChange, CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.counts import engine_names
from plainsql_server.directory.databases import DatabaseState
from plainsql_server.directory.operator import lost_cells
from plainsql_server.engine.admin import extensions, fencing, provisioning
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.extensions import AllowedExtension


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


async def get(directory: Directory, name: str) -> CellRecord:
    """The cell with that name or id. Raises AccessError if there is none."""
    cell = await cells.find(directory, name)
    if cell is None or cell.state is CellState.REMOVED:
        raise AccessError("cell_not_found", f"There is no cell {name!r}.")
    return cell


async def change(directory: Directory, name: str, change: CellChange) -> CellRecord:
    """Changes a cell, all or nothing. Every node follows within a second.

    At a new address, the cell is prepared first, and so is a cell that was down or lost: nothing is sent to one that is
    not suitable. On a cell that was lost, connections to databases that were restored elsewhere are ended. A new
    address must lead to the same cluster: nothing is copied. Raises AccessError if there is no such cell, ConflictError
    if the transition is not allowed, and the errors of `add` if the cell is not suitable.
    """
    if change.conninfo is not None:
        provisioning.check_conninfo(change.conninfo)
    cell = await get(directory, name)
    if change.state is cell.state:
        change = replace(change, state=None)
    possible = [each for each, next_ones in CELL_TRANSITIONS.items() if change.state in next_ones]
    if change.state is not None and cell.state not in possible:
        raise _wrong_state(cell, change.state)
    is_back = cell.state in OUT_OF_SERVICE and change.state not in (None, *OUT_OF_SERVICE)
    if change.conninfo is not None or change.admin_role is not None or is_back:
        address = (change.conninfo or cell.conninfo, change.admin_role or cell.admin_role)
        await provisioning.prepare_cell(*address)
        for engine_name in await _to_drop(directory, cell) if cell.state is CellState.LOST else ():
            await fencing.end_all(*address, engine_name)
    changed = await cells.change(directory, cell.id, change, only_from=possible)
    if changed is None:
        # Another change came in between.
        raise _wrong_state(await get(directory, cell.id), change.state)
    return changed


async def _to_drop(directory: Directory, cell: CellRecord) -> list[str]:
    named = await engine_names(directory, cell.id)
    return [name for name, state in named.items() if state == DatabaseState.DELETING]


async def remove(directory: Directory, name: str) -> tuple[CellRecord, int]:
    """Removes a cell. Returns it, and how many databases it held. Nothing on the cell is changed.

    The databases of a lost cell stay in the directory, unavailable, until they are restored or deleted. Raises
    AccessError if there is no such cell, ConflictError if it holds databases and is not lost.
    """
    cell = await get(directory, name)
    held = await lost_cells.remove(directory, cell, OPERATOR)
    if held is None:
        raise ConflictError(
            "cell_in_use",
            f"The cell {cell.name!r} holds databases, or has just been changed.",
            hint="Move or delete its databases first. If the cell is gone for good, run"
            f" `plainsql-server cell set {cell.name} --state lost`.",
        )
    return cell, held


async def set_address(directory: Directory, name: str, conninfo: str, admin_role: str) -> CellRecord:
    """Stores a new address of a cell. Raises the errors of `change`."""
    return await change(directory, name, CellChange(conninfo=conninfo, admin_role=admin_role))


def _wrong_state(cell: CellRecord, state: CellState | None) -> ConflictError:
    return ConflictError("wrong_state", f"The cell {cell.name!r} is {cell.state} and can't become {state}.")


async def list_(directory: Directory) -> list[CellRecord]:
    """All cells, oldest first."""
    return await cells.list_(directory)


async def extensions_of(directory: Directory, name: str) -> list[AllowedExtension]:
    """The list of extensions that customers may create on a cell. Raises EngineError if the cell is unavailable."""
    cell = await get(directory, name)
    async with _administered(cell) as connection:
        return await extensions.allowed(connection)


async def change_extensions(
    directory: Directory, name: str, *, allow: Collection[str] = (), refuse: Collection[str] = (), reset: bool = False
) -> list[AllowedExtension]:
    """Adds extensions to a cell's list and removes others, at once for all its databases; or restores the default list.

    Extensions that exist in databases stay. Returns the new list. Raises RequestError if a name is not valid,
    EngineError if the cell is unavailable.
    """
    cell = await get(directory, name)
    async with _administered(cell) as connection, extensions.changing(connection):
        listed = {each.name for each in await extensions.allowed(connection)}
        await extensions.allow(connection, None if reset else sorted((listed | set(allow)) - set(refuse)))
        changed = await extensions.allowed(connection)
        # The audit log is written before the change is committed: no change is missing there.
        async with directory.connection() as noted, noted.transaction():
            names = [each.name for each in changed]
            await audit.note(noted, OPERATOR, "cell.extensions", None, cell.id, extensions=names)
    return changed


def _administered(cell: CellRecord) -> AbstractAsyncContextManager[AsyncConnection]:
    return provisioning.admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE)
