"""Cells in the directory: the PostgreSQL clusters that hold customers' databases.

Owns the table `cells`. Refuses to talk to a cell; `engine/` does.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import errors

from plainsql_server.core.actor import OPERATOR, Actor
from plainsql_server.core.errors import ConflictError
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory

_COLUMNS = "id, name, conninfo, admin_role, state, created_at, organization_id"


class CellState(StrEnum):
    """Whether a cell takes new databases. A draining cell still serves those that it has."""

    ACTIVE = "active"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell as stored. `conninfo` is libpq's, without user and dbname, which differ by who connects."""

    id: str
    name: str
    conninfo: str
    admin_role: str
    state: CellState
    created_at: datetime
    organization_id: str | None
    """Whose cell it is; None for one that strangers share."""


async def insert(
    directory: Directory, cell_id: str, name: str, conninfo: str, admin_role: str, *,
    organization_id: str | None, by: Actor,
) -> CellRecord:  # fmt: skip
    """The stored cell, active. Raises ConflictError if the name is taken."""
    statement = f"""
        INSERT INTO cells (id, name, conninfo, admin_role, state, organization_id) VALUES (%s, %s, %s, %s, %s, %s)
        RETURNING {_COLUMNS}
    """
    values = (cell_id, name, conninfo, admin_role, CellState.ACTIVE, organization_id)
    async with directory.connection() as connection, connection.transaction():
        try:
            cursor = await connection.execute(statement, values)
        except errors.UniqueViolation as error:
            raise ConflictError("name_taken", f"There is a cell named {name!r} already.") from error
        await audit.note(connection, by, "cell.add", organization_id, cell_id, name=name)
        return _record(await cursor.fetchone())


async def find(directory: Directory, name_or_id: str) -> CellRecord | None:
    """The cell of that id or name, or None."""
    statement = f"SELECT {_COLUMNS} FROM cells WHERE id = %(it)s OR name = %(it)s"
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, {"it": name_or_id})
        row = await cursor.fetchone()
    return _record(row) if row else None


async def set_address(
    directory: Directory, cell_id: str, conninfo: str, admin_role: str, by: Actor = OPERATOR
) -> CellRecord:
    """The cell, now reached another way (its server moved)."""
    statement = f"UPDATE cells SET conninfo = %s, admin_role = %s WHERE id = %s RETURNING {_COLUMNS}"
    async with directory.connection() as connection, connection.transaction():
        await audit.note(connection, by, "cell.move", None, cell_id)
        cursor = await connection.execute(statement, (conninfo, admin_role, cell_id))
        return _record(await cursor.fetchone())


async def list_(directory: Directory) -> list[CellRecord]:
    """Every cell, oldest first."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"SELECT {_COLUMNS} FROM cells ORDER BY id")
        return [_record(row) for row in await cursor.fetchall()]


async def emptiest(directory: Directory, organization_id: str) -> CellRecord | None:
    """The active cell with the fewest databases that this organization's may go to, or None if there is none.

    An organization with cells of its own, be they active or not, never goes to those that strangers share.
    """
    statement = f"""
        SELECT {_COLUMNS} FROM cells
        WHERE state = 'active' AND organization_id IS NOT DISTINCT FROM (
            SELECT organization_id FROM cells WHERE organization_id = %s LIMIT 1)
        ORDER BY (SELECT count(*) FROM databases WHERE cell_id = cells.id AND state <> 'deleted'), id
        LIMIT 1
    """
    async with directory.connection() as connection:
        row = await (await connection.execute(statement, (organization_id,))).fetchone()
    return _record(row) if row else None


def _record(row: dict[str, Any] | None) -> CellRecord:
    assert row is not None
    return CellRecord(**{**row, "state": CellState(row["state"])})
