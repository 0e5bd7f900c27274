"""Rules about moves: a database changes its cell, and is whole in exactly one place at every moment.

Owns the order of steps between directory and cells. The directory's record decides where the database is
(`directory/moves.py`); on its old cell it is closed before the record may say "done", and nobody opens it again then.
A move that its carrier left is undone: the record says so first, so that it cannot be done any more, then the carrier's
own connection is ended, and then the database is opened where it always was. Refuses to know how a database is copied.
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
from plainsql_server.directory import moves
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.moves import MoveRecord
from plainsql_server.engine.admin import fencing
from plainsql_server.engine.admin.provisioning import MAINTENANCE_DATABASE, admin_connection, lock_database

# How long a move outlives its carrier, and with it a stop; it says that it lives five times in that. Longer than a
# directory that fails over, or a machine that pauses, would undo moves for nothing; a database that was just being
# closed cannot be used as long.
ALIVE_S = 8.0
_KEEP_EVERY_S = ALIVE_S / 5
# How long statements that run when the stop begins may take to their end. Half of what a stop should take in all.
_QUIET_S = 0.5


async def choose(directory: Directory, database: DatabaseRecord, name: str) -> CellRecord:
    """The cell of that name, for a database to go to. Raises AccessError, RequestError or ConflictError if not."""
    cell = await cells.get(directory, name)
    if cell.id == database.cell_id:
        raise RequestError("already_there", f"The database {database.name!r} is on the cell {cell.name!r} already.")
    if cell.state is not CellState.ACTIVE:
        raise ConflictError("wrong_state", f"The cell {cell.name!r} is {cell.state}, and takes no databases.")
    if cell.organization_id not in (None, database.organization_id):
        raise ConflictError("not_their_cell", f"The cell {cell.name!r} belongs to another organization.")
    if database.state not in drafts.REPLACEABLE:
        raise ConflictError("wrong_state", f"The database {database.name!r} is {database.state}.")
    return cell


@asynccontextmanager
async def begun(
    directory: Directory, database: DatabaseRecord, to: CellRecord
) -> AsyncIterator[tuple[MoveRecord, DatabaseRecord]]:
    """A move and the copy to fill, kept for the length of the block. Left before it is finished, it is undone.

    Raises ConflictError if the database is being moved already, or if somebody else undid the move meanwhile.
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
            keeping.cancel()
            await asyncio.wait([keeping])
            await undo(directory, move)


@asynccontextmanager
async def stopped(
    directory: Directory, move: MoveRecord, database: DatabaseRecord, spared: Collection[int]
) -> AsyncIterator[None]:
    """Nobody uses the database during the block, but for the connections spared; requests wait.

    If it is not finished in the block, it is open again afterwards. Raises ConflictError if it cannot be stopped now.
    """
    cell = await cell_of(directory, database)
    async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
        # One connection has the lock and closes: whoever undoes this move ends it, and nothing is closed after that.
        await lock_database(admin, names_of(database))
        if not await moves.stop(directory, move.id, ALIVE_S):
            _overtaken()
        try:
            await _close(admin, database.engine_name, spared)
            yield
        finally:
            # Said before it is opened, as when a move is undone: a switch whose answer was lost may still be committed,
            # and after this it cannot be.
            if await moves.resume(directory, move.id):
                await fencing.open_again(admin, database.engine_name)
                await moves.release(directory, move.id)


async def finish(directory: Directory, move: MoveRecord, database: DatabaseRecord, copy: DatabaseRecord) -> None:
    """Has the database be where its copy is. Within `stopped`. Raises ConflictError if it may not any more."""
    cell = await cell_of(directory, copy)
    # The lock keeps whoever drops what is due away until the directory says what that is.
    async with fencing.held(cell.conninfo, cell.admin_role, names_of(copy)) as is_there:
        if not is_there or not await moves.finish(directory, move, database, copy, OPERATOR):
            _overtaken()


async def undo(directory: Directory, move: MoveRecord) -> None:
    """Undoes a move that is not done: afterwards the database is open where it was. May be run again.

    Raises EngineError if its cell is away; then it is being undone until somebody can.
    """
    if not await moves.begin_undoing(directory, move.id, ALIVE_S):
        return
    database = await get(directory, move.database_id)
    cell = await cell_of(directory, database)
    async with admin_connection(cell.conninfo, cell.admin_role, MAINTENANCE_DATABASE) as admin:
        await fencing.take_lock(admin, names_of(database))
        # Its customer may have deleted it meanwhile.
        await fencing.open_again(admin, database.engine_name)
    await moves.finish_undoing(directory, move, SERVICE)


async def abandoned(directory: Directory, database_id: str | None = None) -> list[MoveRecord]:
    """Moves that carriers who died left, of all databases or of one: the caller's to undo."""
    return await moves.claim_abandoned(directory, ALIVE_S, database_id)


async def _close(admin: AsyncConnection, database: str, spared: Collection[int]) -> None:
    # Where another server leads the cell by now, it is that one which customers write to, and not the one that is read.
    if not await fencing.has_all(admin, database, spared):
        raise EngineError("database_busy", "The cell has another leader by now.", retryable=True)
    await fencing.wait_for_quiet(admin, database, spared, _QUIET_S)
    await fencing.allow_connections(admin, database, False)
    await fencing.end_connections(admin, database, spared)
    if await fencing.has_prepared(admin, database):
        raise EngineError("database_busy", "A transaction that spans databases is not finished.", retryable=True)


async def _is_done(directory: Directory, move: MoveRecord) -> bool:
    now = await moves.find(directory, move.id)
    return now is not None and now.state is moves.MoveState.DONE


async def _keep(directory: Directory, move: MoveRecord, carrier: "asyncio.Task[Any]") -> None:
    """Says that the move lives for as long as it runs; ends its carrier if the move is no longer the carrier's."""
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        try:
            if await moves.keep(directory, move.id, ALIVE_S):
                continue
            if not await _is_done(directory, move):
                carrier.cancel()
            return
        except EngineError:
            # The directory may be back in time. If it is not, nothing can be finished without it, either.
            continue


def _overtaken() -> NoReturn:
    raise ConflictError(
        "move_overtaken", "The database was changed or the move undone meanwhile; the database is where it was.",
        hint="Run it again.",
    )  # fmt: skip
