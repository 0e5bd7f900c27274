"""Cells in the directory: the PostgreSQL clusters that hold customers' databases.

Owns the table `cells`. Refuses to talk to a cell; `engine/` does.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import errors

from plainsql_server.core.actor import OPERATOR, Actor
from plainsql_server.core.errors import ConflictError
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory

# The column is as old as the first migration.
_COLUMNS = "id, name, conninfo, admin_role, state, created_at, organization_id, room AS max_databases, tiers"

# As the migration says: what one PostgreSQL bears well, as far as its catalogs and files go.
DEFAULT_ROOM = 1000


class CellState(StrEnum):
    """Whether a cell takes new databases, which only an active one does, and serves those that it has.

    A full cell keeps what it has; a draining one is to be emptied; one that is down serves nobody, and nothing is
    done on it until it is back.
    """

    ACTIVE = "active"
    DRAINING = "draining"
    FULL = "full"
    DOWN = "down"


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
    max_databases: int
    """How many databases it takes."""
    tiers: tuple[str, ...] | None
    """The tiers whose new databases go there; None for all."""


async def insert(
    directory: Directory, cell_id: str, name: str, conninfo: str, admin_role: str, *,
    organization_id: str | None, by: Actor, max_databases: int | None = None, tiers: Sequence[str] | None = None,
) -> CellRecord:  # fmt: skip
    """The stored cell, active. Raises ConflictError if the name is taken."""
    statement = f"""
        INSERT INTO cells (id, name, conninfo, admin_role, state, organization_id, room, tiers)
        VALUES (%s, %s, %s, %s, %s, %s, coalesce(%s, {DEFAULT_ROOM}), %s)
        RETURNING {_COLUMNS}
    """
    listed = None if tiers is None else list(tiers)
    values = (cell_id, name, conninfo, admin_role, CellState.ACTIVE, organization_id, max_databases, listed)
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


async def set_state(
    directory: Directory, cell_id: str, state: CellState, *, only_from: Collection[CellState], by: Actor = OPERATOR
) -> CellRecord | None:
    """The cell, now in `state`; None if it was in none of the states `only_from`, and nothing changed."""
    statement = f"UPDATE cells SET state = %s WHERE id = %s AND state = ANY(%s) RETURNING {_COLUMNS}"
    async with directory.connection() as connection, connection.transaction():
        cursor = await connection.execute(statement, (state, cell_id, [str(each) for each in only_from]))
        row = await cursor.fetchone()
        if row is None:
            return None
        await audit.note(connection, by, f"cell.{state}", None, cell_id)
        return _record(row)


async def set_share(
    directory: Directory, cell_id: str, max_databases: int, tiers: Sequence[str] | None, by: Actor = OPERATOR
) -> CellRecord:
    """The cell, which from now on takes so many databases, of these tiers or of all. What it has stays."""
    statement = f"UPDATE cells SET room = %s, tiers = %s WHERE id = %s RETURNING {_COLUMNS}"
    async with directory.connection() as connection, connection.transaction():
        await audit.note(connection, by, "cell.share", None, cell_id, max_databases=max_databases)
        cursor = await connection.execute(statement, (max_databases, None if tiers is None else list(tiers), cell_id))
        return _record(await cursor.fetchone())


async def list_(directory: Directory) -> list[CellRecord]:
    """Every cell, oldest first."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"SELECT {_COLUMNS} FROM cells ORDER BY id")
        return [_record(row) for row in await cursor.fetchall()]


async def roomiest(directory: Directory, organization_id: str, tier: str) -> CellRecord | None:
    """The active cell with the largest share of its capacity free, among those that may take the database; or None.

    An organization with cells of its own, be they active or not, never goes to those that strangers share. Cells that
    are kept for the tier come before those that are for all. Creations at the same moment may overfill a cell by some.
    Triggers keep the number of a cell's databases in its row, since to count them all takes too long.
    """
    statement = f"""
        SELECT {_COLUMNS} FROM cells
        WHERE state = 'active' AND room > databases AND (tiers IS NULL OR %(tier)s = ANY(tiers))
          AND organization_id IS NOT DISTINCT FROM (
            SELECT organization_id FROM cells WHERE organization_id = %(organization)s LIMIT 1)
        ORDER BY tiers IS NULL, databases::float / room, id
        LIMIT 1
    """
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, {"organization": organization_id, "tier": tier})
        row = await cursor.fetchone()
    return _record(row) if row else None


def _record(row: dict[str, Any] | None) -> CellRecord:
    assert row is not None
    tiers = None if row["tiers"] is None else tuple(row["tiers"])
    return CellRecord(**{**row, "state": CellState(row["state"]), "tiers": tiers})
