"""Rules about cells: one is known to the directory only once it is fit to hold databases.

Owns adding, moving and listing cells. Refuses to move databases between them.
"""

from plainsql_server.control_plane.names import check_cell_name
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.engine import provisioning


async def add(
    directory: Directory, name: str, conninfo: str, admin_role: str, organization_id: str | None = None
) -> CellRecord:
    """The new cell, prepared and active; for one organization alone, if one is named. May be run again if it failed.

    `conninfo` is libpq's, without user and dbname. Raises RequestError if the cell is not fit (its version,
    its admin role, its connection string), EngineError if it is away, ConflictError if the name is taken.
    """
    check_cell_name(name)
    provisioning.check_conninfo(conninfo)
    await provisioning.prepare_cell(conninfo, admin_role)
    return await cells.insert(
        directory, new_id(Kind.CELL), name, conninfo, admin_role, organization_id=organization_id, by=OPERATOR
    )


async def move(directory: Directory, name: str, conninfo: str, admin_role: str) -> CellRecord:
    """The cell, prepared and from now on reached another way: its server has a new address.

    Raises AccessError if there is no such cell, and what `add` raises if it is not fit.
    """
    provisioning.check_conninfo(conninfo)
    cell = await cells.find(directory, name)
    if cell is None:
        raise AccessError("cell_not_found", f"There is no cell {name!r}.")
    await provisioning.prepare_cell(conninfo, admin_role)
    return await cells.set_address(directory, cell.id, conninfo, admin_role)


async def list_(directory: Directory) -> list[CellRecord]:
    """Every cell, oldest first."""
    return await cells.list_(directory)
