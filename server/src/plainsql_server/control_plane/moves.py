"""Moves a database to another cell. At every moment, the database is complete in exactly one place.

This module orders the steps between directory and cells; copying the data is done elsewhere. The directory's record
decides where the database is (`directory/moves.py`). On the old cell the database is fenced before the record can
become "done", and then never opened again. If the process that carries out a move dies, the move is undone: first the
record becomes "undoing", so the move can no longer be done; then that process's connection is ended; then the database
is opened again on its old cell.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from psycopg import AsyncConnection

from plainsql_server.control_plane import cells, drafts
from plainsql_server.control_plane.databases import cell_of, get, names_of
from plainsql_server.core.actor import OPERATOR, SERVICE
from plainsql_server.core.errors import ConflictError, EngineError, RequestError
from plainsql_server.core.tasks import end
from plainsql_server.directory import moves
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.moves import MoveRecord
from plainsql_server.engine.admin import extensions, fencing
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.admin.provisioning import admin_connection, lock_database

# The lease of a move: if its process dies, the move and its stop last this much longer. The process renews the lease
# five times in this span. It must outlast a failover of the directory or a paused machine, or moves would be undone
# needlessly. On the other hand, a database that was just being closed is unusable for this long.
ALIVE_S = 8.0
_KEEP_EVERY_S = ALIVE_S / 5
# How long statements that are running when the stop begins may take to finish: half the target time of a stop.
_QUIET_S = 0.5


async def choose(directory: Directory, database: DatabaseRecord, name: str) -> CellRecord:
    """The cell to move a database to. Raises AccessError, RequestError or ConflictError if it is not suitable."""
    cell = await cells.get(directory, name)
    if cell.id == database.cell_id:
        raise RequestError("already_there", f"The database {database.name!r} is already on the cell {cell.name!r}.")
    await chosen_cell(directory, name, database.organization_id)
    if database.state not in drafts.REPLACEABLE:
        raise ConflictError("wrong_state", f"The database {database.name!r} is {database.state}.")
    return cell


async def chosen_cell(directory: Directory, name: str, organization_id: str) -> CellRecord:
    """The cell with that name or id, for a database of that organization. Raises AccessError or ConflictError."""
    cell = await cells.get(directory, name)
    if cell.state is not CellState.ACTIVE:
        raise ConflictError("wrong_state", f"The cell {cell.name!r} is {cell.state} and accepts no databases.")
    if cell.organization_id not in (None, organization_id):
        raise ConflictError("not_their_cell", f"The cell {cell.name!r} belongs to another organization.")
    return cell


async def check_extensions(directory: Directory, database: DatabaseRecord, to: CellRecord) -> None:
    """Raises ConflictError if the database has extensions that customers can't create on the other cell."""
    cell = await cell_of(directory, database)
    async with admin_connection(cell.conninfo, cell.admin_role, database.engine_name) as inside:
        needed = await extensions.created(inside)
    offered = {each.name for each in await cells.extensions_of(directory, to.id) if each.is_offered}
    missing = [name for name in needed if name not in offered]
    if missing:
        options = " ".join(f"--allow {name}" for name in missing)
        raise ConflictError(
            "extension_not_offered",
            f"The database {database.name!r} has extensions that the cell {to.name!r} does not offer:"
            f" {', '.join(missing)}.",
            hint=f"Install them there and run `plainsql-server cell extensions {to.name} {options}`.",
        )


@asynccontextmanager
async def begun(
    directory: Directory, database: DatabaseRecord, to: CellRecord
) -> AsyncIterator[tuple[MoveRecord, DatabaseRecord]]:
    """A move and the copy to fill, for the length of the block. If the move is not finished by then, it is undone.

    Raises ConflictError if the database is already being moved, or if the move was undone meanwhile.
    """
    for left in await abandoned(directory, database.id):
        await undo(directory, left)
    async with drafts.draft(directory, database.organization_id, database.name, replaces=True, on=to) as copy:
        move = await moves.insert(directory, database, copy, ALIVE_S)
        carrier = asyncio.current_task()
        assert carrier is not None
        keeping = asyncio.create_task(_keep(directory, move, carrier))
        try:
            yield move, copy
        except asyncio.CancelledError:
            if not keeping.done():
                raise
            carrier.uncancel()
            _overtaken()
        finally:
            await end(keeping)
            await undo(directory, move)


@asynccontextmanager
async def stopped(
    directory: Directory, move: MoveRecord, database: DatabaseRecord, spared: Collection[int]
) -> AsyncIterator[None]:
    """Stops the database for the length of the block: requests wait, and only the `spared` connections can use it.

    If the move is not finished in the block, the database is opened again afterwards. Raises ConflictError if it cannot
    be stopped now.
    """
    cell = await cell_of(directory, database)
    async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
        # The same connection takes the lock and closes the database. To undo this move, another process ends this
        # connection, and nothing can be closed after that.
        await lock_database(admin, names_of(database))
        if not await moves.stop(directory, move.id, ALIVE_S):
            _overtaken()
        try:
            await _close(admin, database.engine_name, spared)
            yield
        finally:
            # Change the record before opening the database, as in `undo`: a switch whose response was lost may still be
            # committing, and after this change it cannot.
            if await moves.resume(directory, move.id):
                await fencing.open_again(admin, database.engine_name)
                await moves.release(directory, move.id)


async def finish(directory: Directory, move: MoveRecord, database: DatabaseRecord, copy: DatabaseRecord) -> None:
    """Switches the database to its copy, within `stopped`. Raises ConflictError if this is no longer allowed."""
    cell = await cell_of(directory, copy)
    # The lock keeps the finisher from dropping the copy until the directory records which one to drop.
    async with fencing.held(cell.conninfo, cell.admin_role, names_of(copy)) as is_there:
        if not is_there or not await moves.finish(directory, move, database, copy, OPERATOR):
            _overtaken()


async def undo(directory: Directory, move: MoveRecord) -> None:
    """Undoes a move that is not done: afterwards the database is open on its old cell. Can be repeated.

    Raises EngineError if the cell is unavailable; the move then stays in state undoing until a later attempt succeeds.
    """
    if not await moves.begin_undoing(directory, move.id, ALIVE_S):
        return
    database = await get(directory, move.database_id)
    cell = await cell_of(directory, database)
    async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
        await fencing.take_lock(admin, names_of(database))
        # The customer may have deleted the database meanwhile.
        await fencing.open_again(admin, database.engine_name)
    await moves.finish_undoing(directory, move, SERVICE)


async def abandoned(directory: Directory, database_id: str | None = None) -> list[MoveRecord]:
    """Moves whose process died, of all databases or of one. The caller must undo them."""
    return await moves.claim_abandoned(directory, ALIVE_S, database_id)


async def _close(admin: AsyncConnection, database: str, spared: Collection[int]) -> None:
    # If another server leads the cell by now, customers write to that one, not to the one that the copy reads from.
    if not await fencing.has_all(admin, database, spared):
        raise EngineError("database_busy", "The cell has failed over to another server.", retryable=True)
    await fencing.wait_for_quiet(admin, database, spared, _QUIET_S)
    await fencing.allow_connections(admin, database, False)
    await fencing.end_connections(admin, database, spared)
    if await fencing.has_prepared(admin, database):
        raise EngineError("database_busy", "A spanning transaction isn't finished yet.", retryable=True)


async def _is_done(directory: Directory, move: MoveRecord) -> bool:
    now = await moves.find(directory, move.id)
    return now is not None and now.state is moves.MoveState.DONE


async def _keep(directory: Directory, move: MoveRecord, carrier: "asyncio.Task[Any]") -> None:
    """Renews the move's lease. If another process has taken over the move, cancels `carrier`."""
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        try:
            if await moves.keep(directory, move.id, ALIVE_S):
                continue
            if not await _is_done(directory, move):
                carrier.cancel()
            return
        except EngineError:
            # The directory may come back in time. If it does not, the move cannot be finished anyway.
            continue


def _overtaken() -> NoReturn:
    raise ConflictError(
        "move_overtaken", "The database changed during the move, or the move was undone. It is still on its old cell.",
        hint="Run the move again.",
    )  # fmt: skip
