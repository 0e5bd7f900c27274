"""Lists customers' running statements on every cell, by organization, and cancels one.

    picture = await look(directory)

SQL text is shown to operators only. It is truncated and stripped of control characters. Parameters are never shown.
"""

import asyncio
from dataclasses import dataclass

from plainsql_server.core.errors import AccessError, ConflictError, ServiceError
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.roles import RoleOwner, owners
from plainsql_server.engine.admin import activity
from plainsql_server.engine.admin.activity import Running

_SQL_LENGTH = 200
_IDLE = "idle"


@dataclass(frozen=True, slots=True)
class RunningStatement:
    """One customer backend and its statement."""

    cell: str
    pid: int
    organization: str
    database: str
    role: str
    state: str
    elapsed_s: float
    waits_for: str | None
    sql: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The running statements, and the cells that did not answer, with the reason."""

    statements: list[RunningStatement]
    unreachable: dict[str, str]


async def look(directory: Directory, *, idle: bool = False) -> Picture:
    """List the statements of all cells, longest first; with `idle`, also idle connections."""
    shown: list[RunningStatement] = []
    answers, unreachable = await _ask(await cells.list_(directory))
    for cell, running in answers:
        kept = [each for each in running if idle or each.state != _IDLE]
        known = await owners(directory, [each.role for each in kept])
        shown += [_statement(cell, each, known.get(each.role)) for each in kept]
    return Picture(sorted(shown, key=lambda each: -each.elapsed_s), unreachable)


async def cancel(directory: Directory, pid: int, cell_name: str | None, *, terminate: bool = False) -> RunningStatement:
    """Cancel a backend's statement, and with `terminate` its connection, too. Returns the statement.

    Raises AccessError if no customer backend has that PID, ConflictError if several cells have one. A cell that does
    not answer does not prevent cancelling a statement on another.
    """
    wanted = [cell for cell in await cells.list_(directory) if cell_name in (None, cell.name, cell.id)]
    if not wanted:
        raise AccessError("cell_not_found", f"There is no cell {cell_name!r}.", hint="Run `plainsql-server cell list`.")
    answers, unreachable = await _ask(wanted)
    found = [(cell, each) for cell, running in answers for each in running if each.pid == pid]
    if len(found) > 1:
        names = ", ".join(cell.name for cell, _ in found)
        raise ConflictError(
            "pid_ambiguous", f"Several cells have a backend with PID {pid}: {names}.", hint="Choose one with --cell."
        )
    for cell, running in found:
        known = await owners(directory, [running.role])
        async with activity.watching(cell.conninfo, cell.admin_role) as connection:
            if await activity.end_statement(connection, pid, list(known), terminate=terminate):
                return _statement(cell, running, known[running.role])
    asked_in_vain = "".join(f" The cell {name} does not respond: {why}" for name, why in unreachable.items())
    raise AccessError("statement_not_found", f"No customer backend has PID {pid}.{asked_in_vain}")


async def _ask(asked: list[CellRecord]) -> tuple[list[tuple[CellRecord, list[Running]]], dict[str, str]]:
    """Return the running statements of each cell that answers, and the reason by name for each cell that does not."""
    answers: list[tuple[CellRecord, list[Running]]] = []
    unreachable: dict[str, str] = {}
    found = await asyncio.gather(*(_running(cell) for cell in asked), return_exceptions=True)
    for cell, answer in zip(asked, found, strict=True):
        if isinstance(answer, ServiceError):
            unreachable[cell.name] = answer.internal_context or answer.message
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers.append((cell, answer))
    return answers, unreachable


async def _running(cell: CellRecord) -> list[Running]:
    async with activity.watching(cell.conninfo, cell.admin_role) as connection:
        return await activity.statements(connection)


def _statement(cell: CellRecord, running: Running, owner: RoleOwner | None) -> RunningStatement:
    return RunningStatement(
        cell=cell.name,
        pid=running.pid,
        organization=owner.organization if owner else "unknown",
        database=owner.database if owner else "unknown",
        role=owner.kind if owner else running.role,
        state=running.state,
        elapsed_s=round(running.elapsed_s, 3),
        waits_for=running.waits_for,
        sql=printable(running.query)[:_SQL_LENGTH],
    )


def printable(text: str) -> str:
    """Return customer text as one line without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
