"""Drafts: a backup is restored into a draft, which becomes a database only when it is complete.

This module orders the steps between directory and cell, as `control_plane/databases.py` does for creations. Its caller
fills the draft with data.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from plainsql_server.control_plane.databases import cell_of, drop, get, insert, names_of
from plainsql_server.control_plane.names import check_database_name
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import ConflictError, ServiceError
from plainsql_server.core.tasks import end, sleep_through
from plainsql_server.directory import databases as stored
from plainsql_server.directory import drafts
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.restoring.restores import Finished
from plainsql_server.engine.admin import fencing, provisioning
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.provisioning import admin_connection, try_lock

# The lease of a draft: how long it outlives the process that fills it. The lease is renewed three times in this span,
# so one slow response of the directory does not end a restore.
_CLAIM_S = 120.0
REPLACEABLE = frozenset([DatabaseState.READY, DatabaseState.SUSPENDED])
# A draft that replaces a database is named for what it will then hold: the replaced content. Like every name, at most
# 63 characters; this is how many of the original name are kept.
_KEPT_NAME = 40


@asynccontextmanager
async def draft(
    directory: Directory, organization_id: str, name: str, *, replaces: bool, on: CellRecord | None = None
) -> AsyncIterator[DatabaseRecord]:
    """An empty database with its roles, for the length of the block. At the end it is dropped unless it was adopted.

    If it `replaces` a database, it gets its own name and does not count against the tier's limit. It is created on the
    cell `on`, or on the one with the most room. If the process dies, the control plane drops the draft a little later.
    Raises the errors of `databases.create`. If the draft is lost meanwhile, cancels the block and raises ConflictError.
    """
    check_database_name(name)
    own_name = f"{name[:_KEPT_NAME]}-replaced-{secrets.token_hex(4)}" if replaces else name
    made = await insert(
        directory, organization_id, own_name, OPERATOR, as_draft_s=_CLAIM_S, counted=not replaces, on=on
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(_keep(directory, made))
            try:
                await _make(directory, made)
                yield made
            finally:
                await end(keeping)
    except BaseExceptionGroup as group:
        # Raise the first failure itself, without the group around it.
        raise group.exceptions[0] from None
    finally:
        await _end(directory, made)


async def adopt(directory: Directory, made: DatabaseRecord, *, without_code: bool) -> DatabaseRecord:
    """Makes the draft a ready database. Raises ConflictError if it was dropped meanwhile."""
    cell = await cell_of(directory, made)
    # The lock keeps the finisher from dropping the draft until the directory records that it is no longer due.
    async with fencing.held(cell.conninfo, cell.admin_role, names_of(made)) as is_there:
        adopted = await drafts.adopt(directory, made, without_code, OPERATOR) if is_there else None
    return adopted or _lost()


async def replace(
    directory: Directory,
    made: DatabaseRecord,
    target: DatabaseRecord,
    *,
    without_code: bool,
    restore_s: float,
    applied_after_s: float,
    finished: Finished | None = None,
) -> DatabaseRecord:
    """Gives the database `target` the draft's content.

    The old content can be restored for `restore_s`, under another name. Nothing is written to the old content once the
    new content may have been read: first the old content is fenced and its connections are ended. It stays closed for
    `applied_after_s`, until no node has it cached. If one of the two changed meanwhile, raises ConflictError and opens
    the old content again. With `finished`, that restore is done at the same time, or nothing is replaced.
    """
    by = OPERATOR if finished is None else finished.restore.by
    cell, old_cell = await cell_of(directory, made), await cell_of(directory, target)
    async with (
        fencing.held(cell.conninfo, cell.admin_role, names_of(made)) as is_there,
        fencing.held(old_cell.conninfo, old_cell.admin_role, names_of(target)),
    ):
        # If the database has moved, its old content must stay closed: a node may not know of the move yet.
        if not is_there or (await get(directory, target.id)).engine_name != target.engine_name:
            _lost()
        async with fencing.closed(old_cell.conninfo, old_cell.admin_role, target.engine_name):
            replaced = (
                await drafts.replace(
                    directory, made, target, without_code=without_code, restore_s=restore_s, by=by, finished=finished
                )
                or _lost()
            )
            # A node that does not know of it yet must not write to what customers no longer see.
            await sleep_through(applied_after_s)
            return replaced


async def reopen(directory: Directory, target: DatabaseRecord) -> None:
    """Opens a database that a process may have left closed: one that died while it replaced the content.

    It may be deleted by now, and restorable. Does nothing if someone else works on it.
    """
    cell = await cell_of(directory, target)
    async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
        # A process that has closed it, and lives, has the lock.
        if not await try_lock(admin, target.engine_name):
            return
        now = await get(directory, target.id)
        is_wanted = now.state in REPLACEABLE or now.restores_to is not None
        if is_wanted and now.engine_name == target.engine_name:
            await fencing.open_again(admin, now.engine_name)


async def fill_branch(
    directory: Directory, made: DatabaseRecord, branch: DatabaseRecord, finished: Finished
) -> DatabaseRecord:
    """Gives a branch that is reserved the draft's content, and makes it ready; the restore is done at the same time.

    Raises ConflictError, and changes nothing, if one of the two has changed or the restore has another worker.
    """
    cell = await cell_of(directory, made)
    async with fencing.held(cell.conninfo, cell.admin_role, names_of(made)) as is_there:
        filled = is_there and await drafts.fill_branch(directory, made, branch, finished, finished.restore.by)
    return filled or _lost()


async def replace_lost(
    directory: Directory, made: DatabaseRecord, target: DatabaseRecord, lost_since: datetime, *,
    without_code: bool, restore_s: float,
) -> DatabaseRecord:  # fmt: skip
    """Gives a database of a lost cell the draft's content, without the lost cell. Its old content is as in `replace`.

    The caller has waited until no one can use the old content. Raises ConflictError, and changes nothing, if one of the
    two has changed or if the cell has not been lost since `lost_since`.
    """
    cell = await cell_of(directory, made)
    async with fencing.held(cell.conninfo, cell.admin_role, names_of(made)) as is_there:
        replaced = is_there and await drafts.replace(
            directory, made, target, without_code=without_code, restore_s=restore_s, by=OPERATOR, lost_since=lost_since
        )
    return replaced or _lost()


async def _make(directory: Directory, made: DatabaseRecord) -> None:
    async def is_wanted() -> bool:
        return await drafts.put_off(directory, made.id, _CLAIM_S)

    cell = await cell_of(directory, made)
    secret = directory.secrets.open(made.record_secret, made.engine_name)
    await provisioning.create_database(cell.conninfo, cell.admin_role, names_of(made), secret, is_wanted)


async def _end(directory: Directory, made: DatabaseRecord) -> None:
    """Drops the draft, unless it was adopted or now holds the content of a replaced database."""
    try:
        if await drafts.put_off(directory, made.id, 0):
            # Read it again: it may have been swapped with the database that it is a copy of.
            await drop(directory, await get(directory, made.id))
    except ServiceError:
        # The draft is due, so the control plane will drop it. The error of the restore itself matters more.
        return


async def _keep(directory: Directory, made: DatabaseRecord) -> None:
    """Renews the draft's lease. Raises ConflictError if the draft was dropped."""
    while True:
        await asyncio.sleep(_CLAIM_S / 3)
        if not await drafts.put_off(directory, made.id, _CLAIM_S):
            now = await stored.find_by_id(directory, made.id)
            if now is None or now.state is DatabaseState.DELETED:
                _lost()


def _lost() -> DatabaseRecord:
    raise ConflictError(
        "restore_overtaken",
        "The target was changed or dropped during the restore. Nothing was restored.",
        hint="Run the restore again.",
    )
