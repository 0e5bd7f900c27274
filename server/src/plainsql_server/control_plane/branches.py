"""Branches: databases that begin as a copy of another one of the same organization.

A branch is created like any database (`control_plane/databases.py`), but on its parent's cell and from its parent. This
module orders the steps of the copy between directory and cell, and removes branches whose time is up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from plainsql_server.core.actor import SERVICE
from plainsql_server.core.clock import now
from plainsql_server.core.errors import ConflictError, EngineError, RequestError
from plainsql_server.core.tasks import end
from plainsql_server.directory import cells, databases
from plainsql_server.directory.branching import branches
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.engine.admin import branching
from plainsql_server.engine.admin.branching import Steps
from plainsql_server.engine.admin.provisioning import EngineNames

# How long requests to the parent stay held, and the creation claimed, if the process that makes the copy dies. Both are
# renewed five times in this span.
ALIVE_S = 8.0
_KEEP_EVERY_S = ALIVE_S / 5


@dataclass(frozen=True, slots=True)
class NewBranch:
    """What a new branch is copied from, and when it is deleted; never, if there is no time."""

    parent: DatabaseRecord
    expires_at: datetime | None


def check_expiry(expires_at: datetime | None) -> None:
    """Raises RequestError if a branch can't expire then."""
    if expires_at is None:
        return
    if expires_at.tzinfo is None:
        raise RequestError("invalid_expiry", "`expires_at` needs a time zone.")
    if expires_at <= now():
        raise RequestError("invalid_expiry", "`expires_at` is in the past.")
    if expires_at.year > _LAST_YEAR:
        raise RequestError(
            "invalid_expiry",
            f"`expires_at` is too late. The last allowed year is {_LAST_YEAR}; omit it for a branch that stays.",
        )


# PostgreSQL knows later years, Python does not. Every time zone shows this one.
_LAST_YEAR = 9998


async def cell_for(directory: Directory, parent: DatabaseRecord) -> CellRecord:
    """The cell for a branch, which is its parent's. Raises ConflictError if there is nothing to copy there, EngineError
    if the cell accepts no databases.
    """
    if parent.state is not DatabaseState.READY:
        raise ConflictError("wrong_state", f"The database {parent.name!r} is {parent.state}.")
    cell = await cells.find(directory, parent.cell_id)
    assert cell is not None, "a foreign key guarantees that the cell exists"
    if cell.state is not CellState.ACTIVE or not await cells.has_room(directory, cell.id):
        raise EngineError(
            "no_active_cell", "The server that holds the database accepts no new databases at the moment.",
            retry_after_ms=60_000,
        )  # fmt: skip
    return cell


async def copy(directory: Directory, branch: DatabaseRecord, cell: CellRecord, names: EngineNames, secret: str) -> None:
    """Makes the branch on its cell from what its parent is now. Can be repeated.

    Raises ConflictError if the parent is gone or elsewhere, EngineError if it is too busy or the cell is unavailable.
    """
    parent = await databases.find_by_id(directory, branch.branch_of or "")
    if parent is None or parent.state is not DatabaseState.READY or parent.cell_id != branch.cell_id:
        raise _parent_changed()

    async def is_wanted() -> bool:
        current = await databases.find_by_id(directory, branch.id)
        return current is not None and current.state in (DatabaseState.CREATING, DatabaseState.FAILED)

    async def copied() -> None:
        await branches.inherit_code(directory, branch.id, parent)

    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        if not await branches.hold(directory, parent, ALIVE_S):
            raise _parent_changed()
        keeping = asyncio.create_task(_keep(directory, parent))
        try:
            yield
        finally:
            await end(keeping)
            await branches.release(directory, parent)

    claiming = asyncio.create_task(_keep_claim(directory, branch))
    try:
        origin = EngineNames(parent.engine_name, parent.owner_role, parent.reader_role)
        steps = Steps(is_wanted, held, copied)
        await branching.create_branch(cell.conninfo, cell.admin_role, origin, names, secret, steps=steps)
    finally:
        await end(claiming)


async def expire(directory: Directory) -> int:
    """Starts to delete the branches whose time is up. Returns how many."""
    return len(await branches.expire(directory, SERVICE))


async def _keep(directory: Directory, parent: DatabaseRecord) -> None:
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        # If the directory is away, the hold ends, and requests fail or wait in PostgreSQL for the copy.
        with suppress(EngineError):
            await branches.hold(directory, parent, ALIVE_S)


async def _keep_claim(directory: Directory, branch: DatabaseRecord) -> None:
    while True:
        with suppress(EngineError):
            await branches.put_off(directory, branch.id, ALIVE_S)
        await asyncio.sleep(_KEEP_EVERY_S)


def _parent_changed() -> ConflictError:
    return ConflictError(
        "wrong_state", "The database to copy is being changed, moved or deleted.", hint="Try again when it is ready.",
    )  # fmt: skip
