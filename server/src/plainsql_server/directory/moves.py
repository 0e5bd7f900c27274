"""Moves in the directory: databases that are being moved from one cell to another.

Reads and writes the table `moves`, which decides where a database is. Until a move is done, the database is on its old
cell, whatever exists elsewhere. The transaction that marks the move as done also swaps the locations of the database
and its copy. The process that carries out a move renews a lease. When the lease runs out, another process may undo the
move, and from then on it cannot be done. Both changes are conditional updates of one row, so only one of them succeeds.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import errors

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import ConflictError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import audit, drafts
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord

_COLUMNS = "id, database_id, copy_id, from_cell_id, to_cell_id, state, started_at, ended_at"
_UNFINISHED = "state IN ('copying', 'stopping', 'undoing')"


class MoveState(StrEnum):
    """The state of a move. While it is copying, requests run as usual; while it is stopping, they wait."""

    COPYING = "copying"
    STOPPING = "stopping"
    UNDOING = "undoing"
    UNDONE = "undone"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A stored move. The copy is the new location until the move is done, and the old one afterwards."""

    id: str
    database_id: str
    copy_id: str
    from_cell_id: str
    to_cell_id: str
    state: MoveState
    started_at: datetime
    ended_at: datetime | None


async def insert(directory: Directory, database: DatabaseRecord, copy: DatabaseRecord, alive_s: float) -> MoveRecord:
    """Stores a move in state copying. Raises ConflictError if the database is already being moved."""
    statement = f"""
        INSERT INTO moves (id, database_id, copy_id, from_cell_id, to_cell_id, state, alive_until)
        VALUES (%s, %s, %s, %s, %s, 'copying', now() + %s * interval '1 s') RETURNING {_COLUMNS}
    """
    values = (new_id(Kind.MOVE), database.id, copy.id, database.cell_id, copy.cell_id, alive_s)
    async with directory.connection() as connection, connection.transaction():
        try:
            row = await (await connection.execute(statement, values)).fetchone()
        except errors.UniqueViolation as error:
            raise ConflictError("move_under_way", f"The database {database.name!r} is already being moved.") from error
        return _record(row)


async def keep(directory: Directory, move_id: str, alive_s: float) -> bool:
    """Renews a move's lease and the hold on its database, for `alive_s`. Returns False if the move was taken over."""
    statement = """
        UPDATE moves SET alive_until = now() + %(alive_s)s * interval '1 s'
        WHERE id = %(id)s AND state IN ('copying', 'stopping') RETURNING database_id
    """
    held = """
        UPDATE databases SET held_until = now() + %(alive_s)s * interval '1 s'
        WHERE id = %(database)s AND held_until IS NOT NULL
    """
    async with directory.connection() as connection, connection.transaction():
        row = await (await connection.execute(statement, {"id": move_id, "alive_s": alive_s})).fetchone()
        if row is None:
            return False
        await connection.execute(held, {"database": row["database_id"], "alive_s": alive_s})
        return True


async def stop(directory: Directory, move_id: str, alive_s: float) -> bool:
    """Starts the stop: requests to the database wait, for at most `alive_s`. Returns whether the move is stopping."""
    statement = """
        UPDATE moves SET state = 'stopping', alive_until = now() + %s * interval '1 s'
        WHERE id = %s AND state IN ('copying', 'stopping') RETURNING database_id
    """
    async with directory.connection() as connection, connection.transaction():
        row = await (await connection.execute(statement, (alive_s, move_id))).fetchone()
        if row is not None:
            held = "UPDATE databases SET held_until = now() + %s * interval '1 s' WHERE id = %s"
            await connection.execute(held, (alive_s, row["database_id"]))
        return row is not None


async def resume(directory: Directory, move_id: str) -> bool:
    """Returns the move to state copying, so it cannot be done until it stops again. Requests still wait.

    Returns whether the move was stopping.
    """
    statement = "UPDATE moves SET state = 'copying' WHERE id = %s AND state = 'stopping'"
    async with directory.connection() as connection:
        return (await connection.execute(statement, (move_id,))).rowcount == 1


async def release(directory: Directory, move_id: str) -> None:
    """Lets the requests to a database continue whose move is back in state copying."""
    statement = """
        UPDATE databases SET held_until = NULL
        WHERE id = (SELECT database_id FROM moves WHERE id = %s AND state = 'copying')
    """
    async with directory.connection() as connection:
        await connection.execute(statement, (move_id,))


async def finish(
    directory: Directory, move: MoveRecord, database: DatabaseRecord, copy: DatabaseRecord, by: Actor
) -> bool:
    """Marks a move as done: the database is now at its copy's location, and the old content is due to be dropped.

    Returns False, and changes nothing, if the move was undone. Raises ConflictError if the database or its copy has
    changed.
    """
    done = "UPDATE moves SET state = 'done', ended_at = now() WHERE id = %s AND state = 'stopping'"
    async with directory.connection() as connection, connection.transaction():
        if (await connection.execute(done, (move.id,))).rowcount == 0:
            return False
        if not await drafts.exchange(connection, copy, database):
            raise ConflictError("move_overtaken", "The database changed during the move. It is still on its old cell.")
        await connection.execute("UPDATE databases SET held_until = NULL WHERE id = %s", (database.id,))
        await connection.execute("UPDATE databases SET work_after = now() WHERE id = %s", (copy.id,))
        details = {"to_cell_id": move.to_cell_id}
        await audit.note(connection, by, "database.move", database.organization_id, database.id, **details)
        return True


async def begin_undoing(directory: Directory, move_id: str, alive_s: float) -> bool:
    """Starts to undo a move, with a lease of `alive_s`; it can no longer be done. Returns False if it has ended."""
    statement = f"""
        UPDATE moves SET state = 'undoing', alive_until = now() + %s * interval '1 s' WHERE id = %s AND {_UNFINISHED}
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, (alive_s, move_id))).rowcount == 1


async def finish_undoing(directory: Directory, move: MoveRecord, by: Actor) -> None:
    """Records that the database is open on its old cell, and that its copy is due to be dropped."""
    undone = "UPDATE moves SET state = 'undone', ended_at = now() WHERE id = %s AND state = 'undoing'"
    async with directory.connection() as connection, connection.transaction():
        if (await connection.execute(undone, (move.id,))).rowcount:
            await connection.execute("UPDATE databases SET held_until = NULL WHERE id = %s", (move.database_id,))
            await connection.execute(
                "UPDATE databases SET work_after = now() WHERE id = %s AND state = 'deleting'", (move.copy_id,)
            )
            await audit.note(connection, by, "move.undo", None, move.id, database_id=move.database_id)


async def claim_abandoned(directory: Directory, claim_s: float, database_id: str | None = None) -> list[MoveRecord]:
    """Takes over moves whose lease has run out, of all databases or of one, for `claim_s`.

    Concurrent callers get different moves.
    """
    statement = f"""
        UPDATE moves SET alive_until = now() + %(claim_s)s * interval '1 s'
        WHERE id IN (
            SELECT id FROM moves WHERE {_UNFINISHED} AND alive_until <= now()
              AND (%(database)s::text IS NULL OR database_id = %(database)s)
            FOR UPDATE SKIP LOCKED)
        RETURNING {_COLUMNS}
    """
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, {"claim_s": claim_s, "database": database_id})
        return [_record(row) for row in await cursor.fetchall()]


async def find(directory: Directory, move_id: str) -> MoveRecord | None:
    async with directory.connection() as connection:
        cursor = await connection.execute(f"SELECT {_COLUMNS} FROM moves WHERE id = %s", (move_id,))
        row = await cursor.fetchone()
    return _record(row) if row else None


def _record(row: dict[str, Any] | None) -> MoveRecord:
    assert row is not None
    return MoveRecord(**{**row, "state": MoveState(row["state"])})
