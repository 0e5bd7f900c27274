"""Rules about drafts: a backup is restored beside what is there, and becomes a database only when it is whole.

Owns the order of steps between directory and cell, as `control_plane/databases.py` does for creations. Refuses to
know what a backup looks like: whoever has one fills the draft meanwhile.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.control_plane.databases import cell_of, drop, get, insert, names_of
from plainsql_server.control_plane.names import check_database_name
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import ConflictError, ServiceError
from plainsql_server.directory import databases as stored
from plainsql_server.directory import drafts
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.engine.admin import fencing, provisioning

# How long a draft outlives the process that fills it. It is put off every third of this, so that one slow answer
# of the directory does not end a restore.
_CLAIM_S = 120.0
REPLACEABLE = frozenset([DatabaseState.READY, DatabaseState.SUSPENDED])
# A draft's name says what becomes of it: it holds what was replaced. 63 characters at most, as every name.
_KEPT_NAME = 40


@asynccontextmanager
async def draft(
    directory: Directory, organization_id: str, name: str, *, replaces: bool, on: CellRecord | None = None
) -> AsyncIterator[DatabaseRecord]:
    """An empty database with its roles, kept for the length of the block, and then dropped unless it was adopted.

    In the place of another it has a name of its own and does not count against the tier. If the process dies, the
    control plane drops it a little later. It is made on the cell that is said, or else on that with most room. Raises
    as `databases.create` does; a draft that was lost meanwhile cancels the block and raises ConflictError.
    """
    check_database_name(name)
    own_name = f"{name[:_KEPT_NAME]}-replaced-{secrets.token_hex(4)}" if replaces else name
    made = await insert(
        directory, organization_id, own_name, OPERATOR, as_draft_s=_CLAIM_S, counted=not replaces, on=on
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(_keep(directory, made))
            await _make(directory, made)
            yield made
            keeping.cancel()
    except BaseExceptionGroup as group:
        # What failed first is what the caller wants to know, as it is.
        raise group.exceptions[0] from None
    finally:
        await _end(directory, made)


async def adopt(directory: Directory, made: DatabaseRecord, *, plain: bool) -> DatabaseRecord:
    """The draft as a database that is ready. Raises ConflictError if it was dropped meanwhile."""
    cell = await cell_of(directory, made)
    # The lock keeps whoever drops what is due away until the directory says that it is not.
    async with fencing.held(cell.conninfo, cell.admin_role, names_of(made)) as is_there:
        adopted = await drafts.adopt(directory, made, plain, OPERATOR) if is_there else None
    return adopted or _lost()


async def replace(
    directory: Directory,
    made: DatabaseRecord,
    target: DatabaseRecord,
    *,
    plain: bool,
    restore_s: float,
    heeded_s: float,
) -> DatabaseRecord:
    """The database `target` with the draft's content. What it had can be restored for `restore_s`, under another name.

    Nobody writes to the old content once somebody may have seen the new: the old one is closed first and its
    connections are ended, and it stays closed for `heeded_s`, until no node remembers it. Raises ConflictError,
    and opens the old one again, if one of them changed meanwhile.
    """
    cell, old_cell = await cell_of(directory, made), await cell_of(directory, target)
    async with (
        fencing.held(cell.conninfo, cell.admin_role, names_of(made)) as is_there,
        fencing.held(old_cell.conninfo, old_cell.admin_role, names_of(target)),
    ):
        # What a move left behind stays closed: some node may not have heard yet that it was left.
        if not is_there or (await get(directory, target.id)).engine_name != target.engine_name:
            _lost()
        async with fencing.closed(old_cell.conninfo, old_cell.admin_role, target.engine_name):
            replaced = (
                await drafts.replace(directory, made, target, plain=plain, restore_s=restore_s, by=OPERATOR) or _lost()
            )
            await asyncio.sleep(heeded_s)
            return replaced


async def _make(directory: Directory, made: DatabaseRecord) -> None:
    async def is_wanted() -> bool:
        return await drafts.put_off(directory, made.id, _CLAIM_S)

    cell = await cell_of(directory, made)
    await provisioning.create_database(cell.conninfo, cell.admin_role, names_of(made), made.record_secret, is_wanted)


async def _end(directory: Directory, made: DatabaseRecord) -> None:
    """Drops what is still a draft: not what was adopted, nor what holds a replaced database's content."""
    try:
        if await drafts.put_off(directory, made.id, 0):
            # As it is now: it may have changed places with what it is a copy of.
            await drop(directory, await get(directory, made.id))
    except ServiceError:
        # It is due, so the control plane drops it; whoever restores is told why that failed, which matters more.
        return


async def _keep(directory: Directory, made: DatabaseRecord) -> None:
    """Puts the end of the draft off for as long as it runs. Raises ConflictError if it was dropped."""
    while True:
        await asyncio.sleep(_CLAIM_S / 3)
        if not await drafts.put_off(directory, made.id, _CLAIM_S):
            now = await stored.find_by_id(directory, made.id)
            if now is None or now.state is DatabaseState.DELETED:
                _lost()


def _lost() -> DatabaseRecord:
    raise ConflictError(
        "restore_overtaken",
        "Something else changed or dropped what this restore was working on; nothing was restored.",
        hint="Run it again.",
    )
