"""Restores databases of a lost cell elsewhere, without that cell's help and without a second copy in service.

A cell that the operator cannot reach may still answer data planes. It cannot be fenced then, so the restore waits: once
the directory says that the cell is lost, no process starts a request there any more, and a request that was running
ends at its deadline. Only after that may a database be used elsewhere. If the cell is back in between, nothing is
replaced.
"""

import asyncio
from datetime import datetime

from plainsql_server.control_plane.databases import cell_of, get
from plainsql_server.core.errors import ConflictError
from plainsql_server.directory import organizations
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.operator import lost_cells
from plainsql_server.engine.admin import fencing
from plainsql_server.limits.tiers import TIERS, Limits

_LOOK_EVERY_S = 0.5


async def check(directory: Directory, database: DatabaseRecord, *, lost: bool) -> datetime | None:
    """Decides whether a database may be replaced. Returns since when its cell is lost; None if the cell is needed.

    Raises ConflictError if the cell does not answer and the operator has not declared it lost, in both ways: for the
    cell and, with `lost`, for this database.
    """
    cell = await cell_of(directory, database)
    if lost and cell.lost_since is None:
        raise ConflictError(
            "cell_not_lost",
            f"The cell {cell.name!r} is {cell.state}, not lost.",
            hint=f"If it is gone for good, run `plainsql-server cell set {cell.name} --state lost` first.",
        )
    if await fencing.answers(cell.conninfo, cell.admin_role):
        return None
    if not lost:
        raise ConflictError("cell_unavailable", f"The cell {cell.name!r} does not respond.", hint=_hint(cell))
    return cell.lost_since


async def wait_until_unused(directory: Directory, database: DatabaseRecord, since: datetime, applied_s: float) -> None:
    """Waits until no data plane can write to a database of a lost cell. Every node knows of a change in `applied_s`.

    Raises ConflictError if the cell has not been lost since then, or if the database was changed.
    """
    organization = await organizations.find_by_id(directory, database.organization_id)
    assert organization is not None, "a foreign key guarantees that the organization exists"
    longest_s = max(map(_longest_s, TIERS.values()))
    while True:
        found = await lost_cells.look_at(
            directory, database.cell_id, organization.id, known_after_s=applied_s, longest_statement_s=longest_s
        )
        if (
            found is None
            or found.lost_since != since
            or (await get(directory, database.id)).cell_id != database.cell_id
        ):
            raise ConflictError(
                "restore_overtaken", "The cell or the database was changed during the restore. Nothing was restored."
            )
        running_s = longest_s if found.had_other_tier else _longest_s(TIERS[organization.tier])
        if found.lost_s >= applied_s + running_s and not found.behind:
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _longest_s(limits: Limits) -> float:
    """How long a request may take that writes. Streams only read."""
    return max(limits.statement_timeout_ms, limits.transaction_timeout_ms) / 1000


def _hint(cell: CellRecord) -> str:
    declared = "" if cell.lost_since else f"run `plainsql-server cell set {cell.name} --state lost` and "
    return f"If it is gone for good, {declared}use --lost. What was written after the backup is then lost."
