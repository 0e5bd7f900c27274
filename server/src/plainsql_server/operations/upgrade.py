"""Upgrades the directory and the cells to this version, or lists what an upgrade would change.

The directory comes first, as in `migrate`, then each cell and the databases on it. Every step can be run again. Only
the owner of the directory's tables can change the directory; if it is up to date, any operator can upgrade the cells.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import ServiceError
from plainsql_server.directory import audit, cells
from plainsql_server.directory.cells import OUT_OF_SERVICE, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.migrations import migrate, pending
from plainsql_server.directory.rights.checking import login
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.admin.activity import watching
from plainsql_server.engine.admin.cell import TEMPLATE, TENANTS_ROLE
from plainsql_server.engine.admin.examining import examine

_DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """One change of an upgrade, or something that prevents it (`refused`)."""

    where: str
    what: str
    refused: bool = False


async def plan(dsn: str) -> list[UpgradeStep]:
    """List what `carry_out` would change. Raises EngineError if the directory is unavailable."""
    missing = await asyncio.to_thread(pending, dsn)
    if missing is None:
        return [UpgradeStep(_DIRECTORY, "its tables belong to a newer version; run that version", refused=True)]
    changes = [UpgradeStep(_DIRECTORY, f"migration {revision}: {text}") for revision, text in missing]
    if missing and missing[0][0] == "0001":
        # There is no table of cells yet, so there are no cells.
        return changes
    async with Directory.open(dsn, max_connections=1) as directory:
        for cell in await _cells_in_service(directory):
            changes += await _plan_cell(cell)
    return changes


async def carry_out(dsn: str, changes: Sequence[UpgradeStep]) -> None:
    """Make every change of the plan, and note it. If it fails, completed changes are kept; you can run it again."""
    if any(step.where == _DIRECTORY for step in changes) or await _is_owner(dsn):
        await asyncio.to_thread(migrate, dsn)
    async with Directory.open(dsn, max_connections=1) as directory:
        for cell in await _cells_in_service(directory):
            await provisioning.prepare_cell(cell.conninfo, cell.admin_role)
            await provisioning.renew_rights(cell.conninfo, cell.admin_role)
            if made := [step.what for step in changes if step.where == _where(cell)]:
                await _note(directory, cell, made)


async def _is_owner(dsn: str) -> bool:
    """Whether the login may renew the rights of the directory's roles, which `migrate` does each time."""
    async with Directory.open(dsn, max_connections=1) as directory, directory.connection() as connection:
        return (await login(connection)).is_owner


async def _note(directory: Directory, cell: CellRecord, made: list[str]) -> None:
    async with directory.connection() as connection, connection.transaction():
        await audit.note(connection, OPERATOR, "cell.upgrade", None, cell.id, changes=made)


def _where(cell: CellRecord) -> str:
    return f"cell {cell.name}"


async def _cells_in_service(directory: Directory) -> list[CellRecord]:
    """Without those that are marked as down or lost: they must not keep the others from being upgraded."""
    return [cell for cell in await cells.list_(directory) if cell.state not in OUT_OF_SERVICE]


async def _plan_cell(cell: CellRecord) -> list[UpgradeStep]:
    where = _where(cell)
    try:
        async with watching(cell.conninfo, cell.admin_role) as connection:
            facts, older = await examine(connection), await provisioning.of_older_editions(connection)
    except ServiceError as error:
        return [UpgradeStep(where, f"cannot be reached: {error.internal_context or error.message}", refused=True)]
    if facts.is_too_old:
        return [
            UpgradeStep(
                where, f"PostgreSQL {facts.version_text} is too old; install the newest minor release", refused=True
            )
        ]
    if not facts.is_superuser:
        return [UpgradeStep(where, f"the role {cell.admin_role} is not a superuser", refused=True)]
    changes = []
    if facts.template is None:
        changes.append(f"create the template database {TEMPLATE}")
    elif facts.template.is_open:
        changes.append(f"close the template database {TEMPLATE} to connections")
    changes += [f"revoke CONNECT on {name} from PUBLIC" for name in facts.open_to_all]
    if not facts.has_probe:
        changes.append("create the role for health checks")
    if facts.ungrouped:
        changes.append(f"add {len(facts.ungrouped)} roles to the group {TENANTS_ROLE}")
    if older:
        changes.append(f"update privileges and functions in {len(older)} customer databases")
    return [UpgradeStep(where, change) for change in changes]
