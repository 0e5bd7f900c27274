"""What has to be done when the directory is as it was at an earlier moment, before the planes use it.

    waiting = await postpone_unfinished(directory)
    found = await find_prepared(directory)

A restored directory lacks the newest decisions about transactions over several databases. The control plane rolls back
what is prepared on a cell and has no decision. That is right if all parts of the transaction are still prepared: then
it was committed nowhere. If one is not, it may have been committed there, and nobody but the operator can tell.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plainsql_server.core.errors import EngineError
from plainsql_server.directory import cells, spanning
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import SpanningState
from plainsql_server.engine.admin.reaping import CellWatch
from plainsql_server.engine.execution.spanning import GID_PREFIX, transaction_of

# What was unfinished then has ended since. A control plane that took it up again could drop a database that is in
# service now.
_POSTPONE = (
    "UPDATE databases SET work_after = now() + interval '7 days',"
    " restorable_until = greatest(restorable_until, now() + interval '7 days') WHERE state IN ('creating', 'deleting')",
    "UPDATE moves SET alive_until = now() + interval '7 days' WHERE state IN ('copying', 'stopping', 'undoing')",
)
# It may be done, and the database was written to since.
_GIVE_UP = (
    "UPDATE restores SET state = 'failed', ended_at = now(), alive_until = NULL, error_code = 'restore_abandoned',"
    " error_message = 'The service does not know whether the database was restored.'"
    " WHERE state IN ('waiting', 'running')"
)


class TransactionEnding(StrEnum):
    """How the control plane ends a prepared transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNCERTAIN = "uncertain"
    """It rolls it back, although a part that is not prepared may have been committed."""


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """A part of a transaction over several databases that is prepared on a cell."""

    gid: str
    cell: str
    database: str
    """Its name on the cell."""
    parts: str
    """How many parts of the transaction are prepared, of how many."""
    ending: TransactionEnding


@dataclass(frozen=True, slots=True)
class PreparedOnCells:
    """What is prepared on the cells, and the cells that did not answer."""

    parts: Sequence[PreparedPart]
    unreachable: Sequence[str]


async def postpone_unfinished(directory: Directory) -> int:
    """Keeps creations, deletions and moves that were unfinished from being taken up for 7 days. Returns how many.

    Restores that customers asked for have failed then.
    """
    async with directory.connection() as connection:
        # Backups of older releases do not have the table.
        if (await connection.execute("SELECT WHERE to_regclass('public.restores') IS NOT NULL")).rowcount:
            await connection.execute(_GIVE_UP)
        return sum([(await connection.execute(statement)).rowcount for statement in _POSTPONE])


async def find_prepared(directory: Directory) -> PreparedOnCells:
    """The service's prepared transactions on all cells that are not lost, and how each will end.

    Raises EngineError if the directory is unavailable.
    """
    found: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
    unreachable = []
    for cell in await cells.list_(directory):
        if cell.state is CellState.LOST:
            # Nothing is ended there any more.
            continue
        try:
            prepared = await _prepared_on(cell)
        except EngineError:
            unreachable.append(cell.name)
            continue
        for gid, database in prepared:
            found[transaction_of(gid)[0]].append((gid, cell.name, database))
    decisions = await spanning.states(directory, list(found))
    parts = [part for whole, each in sorted(found.items()) for part in _parts(each, decisions.get(whole))]
    return PreparedOnCells(parts, unreachable)


async def _prepared_on(cell: CellRecord) -> list[tuple[str, str]]:
    async with CellWatch.beside(cell.conninfo, cell.admin_role) as watch:
        return [(gid, database) for gid, database in await watch.prepared(0) if gid.startswith(GID_PREFIX)]


def _parts(found: Sequence[tuple[str, str, str]], state: SpanningState | None) -> list[PreparedPart]:
    """The prepared parts of one transaction."""
    _, number = transaction_of(found[0][0])
    shown = f"{len(found)} of {number or 'unknown'}"
    ending = _ENDINGS.get(state, TransactionEnding.ROLLBACK if len(found) == number else TransactionEnding.UNCERTAIN)
    return [PreparedPart(gid, cell, database, shown, ending) for gid, cell, database in sorted(found)]


# By what the directory has. Without a decision, it depends on the parts.
_ENDINGS: Mapping[SpanningState | None, TransactionEnding] = {
    SpanningState.COMMITTED: TransactionEnding.COMMIT, SpanningState.ABORTED: TransactionEnding.ROLLBACK,
}  # fmt: skip
