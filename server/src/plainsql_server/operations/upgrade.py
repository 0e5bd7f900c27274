"""Bringing the directory and the cells up to this version, and what that would change.

Owns the order: the directory first, as `migrate` does, then each cell and the databases on it. Every step may be run
again.
"""

import asyncio
from dataclasses import dataclass

from plainsql_server.core.errors import ServiceError
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.migrations import migrate, pending
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.admin.activity import watching
from plainsql_server.engine.admin.examining import examine


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that an upgrade does, or cannot do (`refused`)."""

    where: str
    what: str
    refused: bool = False


async def plan(dsn: str) -> list[Change]:
    """What `carry_out` would change now. Raises EngineError if the directory is away."""
    missing = await asyncio.to_thread(pending, dsn)
    if missing is None:
        return [Change("directory", "its tables are those of a newer version: run that one", refused=True)]
    changes = [Change("directory", f"migration {revision}: {text}") for revision, text in missing]
    if missing and missing[0][0] == "0001":
        # There is no table of cells yet, and so no cell.
        return changes
    async with Directory.open(dsn, max_connections=1) as directory:
        for cell in await cells.list_(directory):
            changes += await _plan_cell(cell)
    return changes


async def carry_out(dsn: str) -> None:
    """Makes every change of the plan. If it fails, what was done is kept, and it can be run again."""
    await asyncio.to_thread(migrate, dsn)
    async with Directory.open(dsn, max_connections=1) as directory:
        for cell in await cells.list_(directory):
            await provisioning.prepare_cell(cell.conninfo, cell.admin_role)
            await provisioning.renew_rights(cell.conninfo, cell.admin_role)


async def _plan_cell(cell: CellRecord) -> list[Change]:
    where = f"cell {cell.name}"
    try:
        async with watching(cell.conninfo, cell.admin_role) as connection:
            facts, older = await examine(connection), await provisioning.of_older_editions(connection)
    except ServiceError as error:
        return [Change(where, f"it cannot be reached: {error.internal_context or error.message}", refused=True)]
    if facts.is_too_old:
        return [Change(where, f"PostgreSQL {facts.version_text} is too old: install its newest release", refused=True)]
    if not facts.is_superuser:
        return [Change(where, f"the role {cell.admin_role} is no superuser", refused=True)]
    changes = []
    if facts.template is None:
        changes.append(f"create the template database {provisioning.TEMPLATE}")
    elif facts.template.is_open:
        changes.append(f"close the template database {provisioning.TEMPLATE}")
    changes += [f"revoke PUBLIC's right to connect to {name}" for name in facts.open_to_all]
    if not facts.has_probe:
        changes.append("create the role that health checks log in as")
    if older:
        changes.append(f"give {len(older)} databases of customers the rights and functions of new ones")
    return [Change(where, change) for change in changes]
