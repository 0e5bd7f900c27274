"""Cells in the directory: the PostgreSQL clusters that hold customers' databases, and the choice of one for
a new database.

Reads and writes the table `cells`. `engine/` connects to the cells themselves.
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

# The column `room` has its name from the first migration.
_COLUMNS = (
    "id, name, conninfo, admin_role, state, created_at, organization_id, room AS max_databases, tiers, lost_since"
)

# As in the migration: what one PostgreSQL cluster handles well, given its catalogs and files.
DEFAULT_MAX_DATABASES = 1000


class CellState(StrEnum):
    """Whether a cell accepts new databases and serves those it has. Only an active cell accepts new ones.

    A full cell keeps its databases. A draining cell is being emptied. A cell that is down serves no requests, and the
    service does nothing on it until it is back. The databases of a cell that is lost may be restored on other cells. A
    removed cell is listed nowhere; it never comes back.
    """

    ACTIVE = "active"
    DRAINING = "draining"
    FULL = "full"
    DOWN = "down"
    LOST = "lost"
    REMOVED = "removed"


# In these states, no request and no work of the service goes to a cell.
OUT_OF_SERVICE = frozenset([CellState.DOWN, CellState.LOST, CellState.REMOVED])


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A stored cell. `conninfo` is libpq's, without user and dbname, which depend on the connection."""

    id: str
    name: str
    conninfo: str
    admin_role: str
    state: CellState
    created_at: datetime
    organization_id: str | None
    """The organization that owns the cell; None for a shared cell."""
    max_databases: int
    """How many databases it accepts."""
    tiers: tuple[str, ...] | None
    """The tiers whose new databases it accepts; None for all."""
    lost_since: datetime | None
    """Since when it is lost, also if it was removed as a lost cell; None for any other."""


@dataclass(frozen=True, slots=True)
class CellChange:
    """What to change about a cell. None means no change."""

    state: CellState | None = None
    conninfo: str | None = None
    admin_role: str | None = None
    max_databases: int | None = None
    tiers: Sequence[str] | None = None
    """The tiers whose new databases it accepts from now on; an empty sequence for all."""


async def insert(
    directory: Directory, cell_id: str, name: str, conninfo: str, admin_role: str, *,
    organization_id: str | None, by: Actor, max_databases: int | None = None, tiers: Sequence[str] | None = None,
) -> CellRecord:  # fmt: skip
    """Stores a cell in state active. Raises ConflictError if the name is taken."""
    statement = f"""
        INSERT INTO cells (id, name, conninfo, admin_role, state, organization_id, room, tiers)
        VALUES (%s, %s, %s, %s, %s, %s, coalesce(%s, {DEFAULT_MAX_DATABASES}), %s)
        RETURNING {_COLUMNS}
    """
    listed = None if tiers is None else list(tiers)
    values = (cell_id, name, conninfo, admin_role, CellState.ACTIVE, organization_id, max_databases, listed)
    async with directory.connection() as connection, connection.transaction():
        try:
            cursor = await connection.execute(statement, values)
        except errors.UniqueViolation as error:
            raise ConflictError("name_taken", f"A cell named {name!r} already exists.") from error
        await audit.note(connection, by, "cell.add", organization_id, cell_id, name=name)
        return _record(await cursor.fetchone())


async def find(directory: Directory, name_or_id: str) -> CellRecord | None:
    """The cell with that id, even if it was removed, or with that name; None if there is none."""
    statement = f"SELECT {_COLUMNS} FROM cells WHERE id = %(it)s OR (name = %(it)s AND state <> 'removed')"
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, {"it": name_or_id})
        row = await cursor.fetchone()
    return _record(row) if row else None


async def change(
    directory: Directory, cell_id: str, change: CellChange, *, only_from: Collection[CellState], by: Actor = OPERATOR
) -> CellRecord | None:
    """Changes a cell, all or nothing. Returns None if the state is to change and is none of `only_from`."""
    statement = f"""
        UPDATE cells SET
            state = coalesce(%(state)s, state), lost_since = CASE coalesce(%(state)s, state)
                WHEN 'lost' THEN coalesce(lost_since, now()) END, conninfo = coalesce(%(conninfo)s, conninfo),
            admin_role = coalesce(%(admin_role)s, admin_role), room = coalesce(%(max_databases)s, room),
            tiers = CASE WHEN %(tiers)s::text[] IS NULL THEN tiers ELSE nullif(%(tiers)s::text[], '{{}}') END
        WHERE id = %(id)s AND (%(state)s::text IS NULL OR state = ANY(%(only_from)s))
        RETURNING {_COLUMNS}
    """
    values = {
        "id": cell_id, "state": change.state, "only_from": [str(each) for each in only_from],
        "conninfo": change.conninfo, "admin_role": change.admin_role, "max_databases": change.max_databases,
        "tiers": None if change.tiers is None else list(change.tiers),
    }  # fmt: skip
    async with directory.connection() as connection, connection.transaction():
        row = await (await connection.execute(statement, values)).fetchone()
        if row is None:
            return None
        changed = _record(row)
        if change.conninfo is not None or change.admin_role is not None:
            await audit.note(connection, by, "cell.move", None, cell_id)
        if change.state is not None:
            await audit.note(connection, by, f"cell.{change.state}", None, cell_id)
        if change.max_databases is not None or change.tiers is not None:
            await audit.note(connection, by, "cell.share", None, cell_id, max_databases=changed.max_databases)
        return changed


async def list_(directory: Directory) -> list[CellRecord]:
    """All cells but removed ones, oldest first."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"SELECT {_COLUMNS} FROM cells WHERE state <> 'removed' ORDER BY id")
        return [_record(row) for row in await cursor.fetchall()]


async def roomiest(directory: Directory, organization_id: str, tier: str) -> CellRecord | None:
    """The active cell with the largest share of free capacity among those that accept the database, or None.

    An organization that has its own cells, active or not, never uses shared ones. Cells reserved for the tier come
    before cells for all tiers. Concurrent creations may overfill a cell slightly. Triggers keep the number of a cell's
    databases in its row, because counting them takes too long.
    """
    statement = f"""
        SELECT {_COLUMNS} FROM cells
        WHERE state = 'active' AND room > databases AND (tiers IS NULL OR %(tier)s = ANY(tiers))
          AND organization_id IS NOT DISTINCT FROM (
            SELECT organization_id FROM cells
            WHERE organization_id = %(organization)s AND state <> 'removed' LIMIT 1)
        ORDER BY tiers IS NULL, databases::float / room, id
        LIMIT 1
    """
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, {"organization": organization_id, "tier": tier})
        row = await cursor.fetchone()
    return _record(row) if row else None


async def has_room(directory: Directory, cell_id: str) -> bool:
    """Whether a cell has fewer databases than it accepts."""
    async with directory.connection() as connection:
        cursor = await connection.execute("SELECT FROM cells WHERE id = %s AND room > databases", (cell_id,))
        return cursor.rowcount == 1


def _record(row: dict[str, Any] | None) -> CellRecord:
    assert row is not None
    tiers = None if row["tiers"] is None else tuple(row["tiers"])
    return CellRecord(**{**row, "state": CellState(row["state"]), "tiers": tiers})
