"""Cells that are lost, in the directory: when their databases may be restored elsewhere, and how one is removed.

A cell that does not answer the operator may still answer a data plane. So a database of a lost cell is restored only
when no data plane can write there any more: `look_at` returns what decides that.
"""

from dataclasses import dataclass
from datetime import datetime

from plainsql_server.core.actor import Actor
from plainsql_server.core.share import UNSEEN_S
from plainsql_server.directory import audit
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory


@dataclass(frozen=True, slots=True)
class LostCell:
    """A lost cell, as the directory sees it now."""

    lost_since: datetime
    lost_s: float
    """For how long it has been lost."""
    behind: int
    """How many data plane processes are live and have not reported since every process must know of the loss."""
    had_other_tier: bool
    """Whether the organization has changed its tier so recently that a statement may run by the limits of the other."""


async def look_at(
    directory: Directory, cell_id: str, organization_id: str, *, known_after_s: float, longest_statement_s: float
) -> LostCell | None:
    """How a cell has been lost; None if it is not lost. Every process knows of the loss after `known_after_s`."""
    statement = """
        SELECT lost_since, extract(epoch FROM now() - lost_since)::float AS lost_s,
               (SELECT count(*) FROM data_processes
                WHERE plane = 'data' AND seen_at > now() - %(unseen_s)s * interval '1 s'
                  AND seen_at < cells.lost_since + %(known_after_s)s * interval '1 s')::int AS behind,
               EXISTS (SELECT FROM audit WHERE organization_id = %(organization_id)s
                       AND action = 'organization.set_tier'
                       AND at > cells.lost_since - %(longest_s)s * interval '1 s') AS had_other_tier
        FROM cells WHERE id = %(cell_id)s AND state IN ('lost', 'removed') AND lost_since IS NOT NULL
    """
    arguments = {
        "cell_id": cell_id, "organization_id": organization_id, "unseen_s": UNSEEN_S, "known_after_s": known_after_s,
        "longest_s": longest_statement_s,
    }  # fmt: skip
    async with directory.connection() as connection:
        row = await (await connection.execute(statement, arguments)).fetchone()
    return None if row is None else LostCell(**row)


async def remove(directory: Directory, cell: CellRecord, by: Actor) -> int | None:
    """Removes a cell that is empty or lost. Returns how many databases it had; None if it may not be removed."""
    held = "SELECT count(*) AS n FROM databases WHERE cell_id = %s AND state <> 'deleted'"
    change = "UPDATE cells SET state = 'removed' WHERE id = %s AND state = %s"
    async with directory.connection() as connection, connection.transaction():
        # A database is inserted with a reference to this row, and waits for this lock.
        await connection.execute("SELECT FROM cells WHERE id = %s FOR UPDATE", (cell.id,))
        row = await (await connection.execute(held, (cell.id,))).fetchone()
        assert row is not None
        count = int(row["n"])
        if count and cell.lost_since is None:
            return None
        if (await connection.execute(change, (cell.id, cell.state))).rowcount == 0:
            return None
        await audit.note(connection, by, "cell.remove", cell.organization_id, cell.id, name=cell.name, databases=count)
    return count
