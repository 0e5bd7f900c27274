"""Branches: databases that begin as a copy of another one of the same organization.

Until its copy is complete, a branch is a draft, as a backup that is being restored is (`control_plane/drafts.py`): if
the copy fails, or the process dies, it is dropped and never completed, so half a copy is never taken for a database.
This module orders the steps between directory and cell, and removes branches whose time is up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plainsql_server.control_plane import databases
from plainsql_server.control_plane.cell_work import work_of
from plainsql_server.control_plane.names import check_database_name
from plainsql_server.core.actor import OPERATOR, SERVICE, Actor
from plainsql_server.core.errors import ConflictError, EngineError, ServiceError
from plainsql_server.core.tasks import end
from plainsql_server.directory import cells
from plainsql_server.directory import databases as stored
from plainsql_server.directory.branching import branches
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.engine.admin import branching
from plainsql_server.engine.admin.branching import Parent

# How long requests to the parent stay held, and the branch claimed, if the process that makes the copy dies. Both are
# renewed five times in this span.
ALIVE_S = 8.0
_KEEP_EVERY_S = ALIVE_S / 5


@dataclass(frozen=True, slots=True)
class NewBranch:
    """What a new branch is copied from, and when it is deleted; never, if there is no time."""

    parent: DatabaseRecord
    expires_at: datetime | None


async def create(
    directory: Directory, organization_id: str, name: str, branch: NewBranch, by: Actor = OPERATOR
) -> DatabaseRecord:
    """Makes a branch, ready to use.

    It fails at once if another branch of the organization, or too many on the cell, are being made, and if the parent
    or all branches are too large. Nothing of a branch that fails is kept. Raises RequestError for an invalid name,
    ConflictError if it is taken or the parent is not ready, LimitError if it is too large or a limit of the tier is
    reached, and EngineError or InternalError if the cell fails.
    """
    check_database_name(name)
    existing = await stored.find(directory, organization_id, name)
    if existing is not None:
        raise databases.taken(existing)
    cell = await _cell_for(directory, branch.parent)
    with work_of(directory).branching(cell.id):
        return await _create_on(cell, directory, organization_id, name, branch, by=by)


async def reserve(
    directory: Directory, organization_id: str, name: str, branch: NewBranch, by: Actor, *, reserved_s: float
) -> DatabaseRecord:
    """Takes the name for a branch that is filled later, by a restore; for `reserved_s`, unless that renews it.

    Nothing of it exists on its cell. Raises the errors of `create`.
    """
    check_database_name(name)
    existing = await stored.find(directory, organization_id, name)
    if existing is not None:
        raise databases.taken(existing)
    cell = await _cell_for(directory, branch.parent)
    names = await branches.names_on(directory, organization_id, cell.id)
    async with work_of(directory).slot(cell.id):
        await branching.check_sizes(cell.conninfo, cell.admin_role, databases.names_of(branch.parent), names)
    return await databases.insert(
        directory, organization_id, name, by, as_draft_s=reserved_s, on=cell, branch_of=branch.parent.id,
        expires_at=branch.expires_at,
    )  # fmt: skip


async def withdraw(directory: Directory, reserved: DatabaseRecord) -> None:
    """Lets a branch that was reserved be dropped, which frees its name, unless there is a restore for it."""
    await branches.withdraw(directory, reserved.id)


async def expire(directory: Directory) -> int:
    """Starts to delete the branches whose time is up. Returns how many."""
    return len(await branches.expire(directory, SERVICE))


async def _cell_for(directory: Directory, parent: DatabaseRecord) -> CellRecord:
    """The cell for a branch, which is its parent's. Raises ConflictError if there is nothing to copy there, EngineError
    if the cell accepts no databases.
    """
    if parent.state is not DatabaseState.READY:
        raise ConflictError("wrong_state", f"The database {parent.name!r} is {parent.state}.")
    cell = await databases.cell_of(directory, parent)
    if cell.state is not CellState.ACTIVE or not await cells.has_room(directory, cell.id):
        raise EngineError(
            "no_active_cell", "The server that holds the database accepts no new databases at the moment.",
            retry_after_ms=60_000,
        )  # fmt: skip
    return cell


async def _create_on(
    cell: CellRecord, directory: Directory, organization_id: str, name: str, branch: NewBranch, *, by: Actor
) -> DatabaseRecord:
    async def listed() -> list[str]:
        return await branches.names_on(directory, organization_id, cell.id)

    names = databases.names_of(branch.parent)
    draft: DatabaseRecord | None = None
    is_begun = False

    def begin() -> None:
        nonlocal is_begun
        is_begun = True

    try:
        async with branching.chosen(cell.conninfo, cell.admin_role, names, organization_id, listed) as parent:
            draft = await databases.insert(
                directory, organization_id, name, by, as_draft_s=ALIVE_S, on=cell, branch_of=branch.parent.id,
                expires_at=branch.expires_at,
            )  # fmt: skip
            async with _kept(_keep_draft(directory, draft)):
                await _make(directory, draft, branch.parent, parent, begin=begin, by=by)
    except (Exception, asyncio.CancelledError):
        # Its locks are free by now.
        if draft is not None:
            await _drop(directory, draft, is_begun=is_begun)
        raise
    return await databases.get(directory, draft.id)


async def _make(
    directory: Directory, draft: DatabaseRecord, original: DatabaseRecord, parent: Parent, *,
    begin: Callable[[], None], by: Actor,
) -> None:  # fmt: skip
    """Fills the draft and makes it a database, while parent and draft are locked on the cell.

    Calls `begin` before the cell has work with it: a checkpoint or the copy. Before that, it waits until the parent is
    not busy.
    """

    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        if not await branches.hold(directory, original, ALIVE_S):
            raise _parent_changed()
        try:
            async with _kept(_keep_hold(directory, original)):
                yield
        finally:
            # If the directory is unavailable, the hold ends by itself. The copy is complete all the same.
            with suppress(EngineError):
                await branches.release(directory, original)

    secret = directory.secrets.open(draft.record_secret, draft.engine_name)
    await branching.copy(parent, databases.names_of(draft), secret, held, begin)
    if not await branches.complete(directory, draft, original, by):
        raise ConflictError("wrong_state", f"The database {draft.name!r} was deleted while it was made.")


async def _drop(directory: Directory, draft: DatabaseRecord, *, is_begun: bool) -> None:
    """Drops what there is of a branch that could not be made."""
    end_claim = branches.give_up if is_begun else branches.withdraw
    try:
        if await end_claim(directory, draft.id):
            await databases.drop(directory, draft)
    except ServiceError:
        # The draft is due soon, so the finisher will drop it. The error of the creation itself matters more.
        return


@asynccontextmanager
async def _kept(keeping: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task during the block."""
    task = asyncio.create_task(keeping)
    try:
        yield
    finally:
        await end(task)


async def _keep_hold(directory: Directory, parent: DatabaseRecord) -> None:
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        # If the directory is unavailable, the hold ends, and requests fail or wait in PostgreSQL for the copy.
        with suppress(EngineError):
            await branches.hold(directory, parent, ALIVE_S)


async def _keep_draft(directory: Directory, draft: DatabaseRecord) -> None:
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        # If the directory is unavailable for too long, another process drops the draft as soon as the locks are free.
        with suppress(EngineError):
            await branches.put_off(directory, draft.id, ALIVE_S)


def _parent_changed() -> ConflictError:
    return ConflictError(
        "wrong_state", "The database to copy is being changed, moved or deleted.", hint="Try again when it is ready.",
    )  # fmt: skip
