"""Moves in the directory: databases on their way from one cell to another.

Owns the table `moves`, and with it the word on where a database is. Until a move is done the database is where it
was, whatever exists elsewhere; the one transaction that says "done" also exchanges the places of the database and its
copy. Whoever carries a move out says again and again that it lives. Once it did not for a while, others may undo the
move, and from the moment that they say so it cannot be done any more: both are conditional changes of one row.
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
    """How far a move is. While it copies, everybody goes on; when it stops, requests wait."""

    COPYING = "copying"
    STOPPING = "stopping"
    UNDOING = "undoing"
    UNDONE = "undone"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move as stored. The copy is the new one until the move is done, and then the old one."""

    id: str
    database_id: str
    copy_id: str
    from_cell_id: str
    to_cell_id: str
    state: MoveState
    started_at: datetime
    ended_at: datetime | None


async def insert(directory: Directory, database: DatabaseRecord, copy: DatabaseRecord, alive_s: float) -> MoveRecord:
    """The move, copying. Raises ConflictError if the database is being moved already."""
    statement = f"""
        INSERT INTO moves (id, database_id, copy_id, from_cell_id, to_cell_id, state, alive_until)
        VALUES (%s, %s, %s, %s, %s, 'copying', now() + %s * interval '1 s') RETURNING {_COLUMNS}
    """
    values = (new_id(Kind.MOVE), database.id, copy.id, database.cell_id, copy.cell_id, alive_s)
    async with directory.connection() as connection, connection.transaction():
        try:
            row = await (await connection.execute(statement, values)).fetchone()
        except errors.UniqueViolation as error:
            raise ConflictError("move_under_way", f"The database {database.name!r} is being moved already.") from error
        return _record(row)


async def keep(directory: Directory, move_id: str, alive_s: float) -> bool:
    """Whether the move is still its carrier's, and is so for `alive_s` more; then what it holds is held as long."""
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
    """Whether the move is stopping now: requests to the database wait from here on, for `alive_s` at most."""
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
    """Whether the move is copying again: it may stop anew, and cannot be done before that. Requests still wait."""
    statement = "UPDATE moves SET state = 'copying' WHERE id = %s AND state = 'stopping'"
    async with directory.connection() as connection:
        return (await connection.execute(statement, (move_id,))).rowcount == 1


async def release(directory: Directory, move_id: str) -> None:
    """Lets requests to a database that is being copied go on."""
    statement = """
        UPDATE databases SET held_until = NULL
        WHERE id = (SELECT database_id FROM moves WHERE id = %s AND state = 'copying')
    """
    async with directory.connection() as connection:
        await connection.execute(statement, (move_id,))


async def finish(
    directory: Directory, move: MoveRecord, database: DatabaseRecord, copy: DatabaseRecord, by: Actor
) -> bool:
    """Whether the database is where its copy was, from this commit on. What it left is due to be dropped.

    False, and nothing changed, if the move was undone or the database or its copy is no longer what it was.
    """
    done = "UPDATE moves SET state = 'done', ended_at = now() WHERE id = %s AND state = 'stopping'"
    async with directory.connection() as connection, connection.transaction():
        if (await connection.execute(done, (move.id,))).rowcount == 0:
            return False
        if not await drafts.exchange(connection, copy, database):
            raise ConflictError("move_overtaken", "The database changed while it was moved; it is where it was.")
        await connection.execute("UPDATE databases SET held_until = NULL WHERE id = %s", (database.id,))
        await connection.execute("UPDATE databases SET work_after = now() WHERE id = %s", (copy.id,))
        details = {"to_cell_id": move.to_cell_id}
        await audit.note(connection, by, "database.move", database.organization_id, database.id, **details)
        return True


async def begin_undoing(directory: Directory, move_id: str, alive_s: float) -> bool:
    """Whether the move is being undone, by the caller for `alive_s`: it cannot be done any more."""
    statement = f"""
        UPDATE moves SET state = 'undoing', alive_until = now() + %s * interval '1 s' WHERE id = %s AND {_UNFINISHED}
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, (alive_s, move_id))).rowcount == 1


async def finish_undoing(directory: Directory, move: MoveRecord, by: Actor) -> None:
    """Notes that the database is open where it was, and that its copy is due to be dropped."""
    undone = "UPDATE moves SET state = 'undone', ended_at = now() WHERE id = %s AND state = 'undoing'"
    async with directory.connection() as connection, connection.transaction():
        if (await connection.execute(undone, (move.id,))).rowcount:
            await connection.execute("UPDATE databases SET held_until = NULL WHERE id = %s", (move.database_id,))
            await connection.execute(
                "UPDATE databases SET work_after = now() WHERE id = %s AND state = 'deleting'", (move.copy_id,)
            )
            await audit.note(connection, by, "move.undo", None, move.id, database_id=move.database_id)


async def claim_abandoned(directory: Directory, claim_s: float, database_id: str | None = None) -> list[MoveRecord]:
    """Moves whose carrier died, of all databases or of one, taken by the caller for `claim_s`; each of several who ask
    gets others."""
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
