"""Databases in the directory: customers' databases, where they live and their two engine roles.

Owns the tables `databases` and `roles`, which are always written together. Refuses to touch a cell, and to
decide which state may follow which beyond what the tables' constraints say.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import errors

from plainsql_server.core.errors import ConflictError
from plainsql_server.directory.connection import Connection, Directory

_SELECT = """
    SELECT d.id, d.organization_id, d.name, d.state, d.is_default, d.plain, d.engine_name, d.record_secret,
           d.created_at,
           o.engine_name AS owner_role, r.engine_name AS reader_role,
           d.cell_id, c.conninfo AS cell_conninfo
    FROM databases d
    JOIN cells c ON c.id = d.cell_id
    JOIN roles o ON o.database_id = d.id AND o.kind = 'owner'
    JOIN roles r ON r.database_id = d.id AND r.kind = 'reader'
"""


class DatabaseState(StrEnum):
    """Where a database is in its life: creating → ready → deleting → deleted, with two side rooms."""

    CREATING = "creating"
    READY = "ready"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """A database as stored, with what it takes to connect to it as one of its roles."""

    id: str
    organization_id: str
    name: str
    state: DatabaseState
    is_default: bool
    plain: bool
    """Whether it holds nothing that could run code unseen; decides how sessions are cleaned."""
    engine_name: str
    record_secret: str
    """What the database's record of requests asks for; see `engine/records.py`."""
    owner_role: str
    reader_role: str
    cell_id: str
    cell_conninfo: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDatabase:
    """What is decided about a database before it is stored."""

    id: str
    organization_id: str
    name: str
    cell_id: str
    engine_name: str
    record_secret: str
    owner_role: str
    reader_role: str


async def insert(directory: Directory, new: NewDatabase, at_most: int | None) -> DatabaseRecord | None:
    """The stored database, in state creating; the organization's default if it has none yet.

    Returns None, and stores nothing, if the organization has `at_most` databases already. Raises
    ConflictError if the name is taken.
    """
    async with directory.connection() as connection, connection.transaction():
        # Creations of one organization wait for each other here, so that the count stays true.
        await connection.execute("SELECT FROM organizations WHERE id = %s FOR UPDATE", (new.organization_id,))
        if at_most is not None and await _count(connection, new.organization_id) >= at_most:
            return None
        await _insert_rows(connection, new)
        cursor = await connection.execute(f"{_SELECT} WHERE d.id = %s", (new.id,))
        return _record(await cursor.fetchone())


async def find(directory: Directory, organization_id: str, name: str | None) -> DatabaseRecord | None:
    """An organization's database of that name, or its default one for None; None if there is none."""
    if name is None:
        return await _find_where(directory, "d.organization_id = %s AND d.is_default", (organization_id,))
    condition = "d.organization_id = %s AND d.name = %s AND d.state <> 'deleted'"
    return await _find_where(directory, condition, (organization_id, name))


async def list_(directory: Directory, organization_id: str) -> list[DatabaseRecord]:
    """An organization's databases, oldest first, without the deleted ones."""
    statement = f"{_SELECT} WHERE d.organization_id = %s AND d.state <> 'deleted' ORDER BY d.id"
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, (organization_id,))
        return [_record(row) for row in await cursor.fetchall()]


async def set_state(
    directory: Directory, database_id: str, state: DatabaseState, *, only_from: frozenset[DatabaseState]
) -> bool:
    """Whether the database was in one of the states `only_from` and is now in `state`."""
    statement = "UPDATE databases SET state = %s WHERE id = %s AND state = ANY(%s)"
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, (state, database_id, [str(each) for each in only_from]))
    return cursor.rowcount == 1


async def set_not_plain(directory: Directory, database_id: str) -> None:
    """Notes that the database may hold code from now on; there is no way back."""
    async with directory.connection() as connection:
        await connection.execute("UPDATE databases SET plain = false WHERE id = %s AND plain", (database_id,))


async def _find_where(directory: Directory, condition: str, arguments: tuple[str, ...]) -> DatabaseRecord | None:
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} WHERE {condition}", arguments)
        row = await cursor.fetchone()
    return _record(row) if row else None


async def _count(connection: Connection, organization_id: str) -> int:
    statement = "SELECT count(*) AS n FROM databases WHERE organization_id = %s AND state <> 'deleted'"
    row = await (await connection.execute(statement, (organization_id,))).fetchone()
    assert row is not None
    return int(row["n"])


async def _insert_rows(connection: Connection, new: NewDatabase) -> None:
    database = """
        INSERT INTO databases (id, organization_id, name, state, is_default, engine_name, record_secret, cell_id)
        SELECT %(id)s, %(organization_id)s, %(name)s, 'creating',
               NOT EXISTS (SELECT FROM databases WHERE organization_id = %(organization_id)s AND is_default),
               %(engine_name)s, %(record_secret)s, %(cell_id)s
    """
    arguments = {
        "id": new.id,
        "organization_id": new.organization_id,
        "name": new.name,
        "engine_name": new.engine_name,
        "record_secret": new.record_secret,
        "cell_id": new.cell_id,
    }
    try:
        await connection.execute(database, arguments)
    except errors.UniqueViolation as error:
        raise ConflictError("name_taken", f"There is a database named {new.name!r} already.") from error
    roles = "INSERT INTO roles (database_id, kind, engine_name) VALUES (%s, 'owner', %s), (%s, 'reader', %s)"
    await connection.execute(roles, (new.id, new.owner_role, new.id, new.reader_role))


def _record(row: dict[str, Any] | None) -> DatabaseRecord:
    assert row is not None
    return DatabaseRecord(**{**row, "state": DatabaseState(row["state"])})
