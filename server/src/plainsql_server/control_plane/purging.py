"""Purges an organization: its databases on all cells, and everything that the directory knows of it.

It can be repeated until it succeeds. Requests that are running end with their databases.
"""

import asyncio
from dataclasses import dataclass

from plainsql_server.control_plane import databases
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import ConflictError, ServiceError
from plainsql_server.directory import databases as stored
from plainsql_server.directory.audit import KEPT
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.operator import purge
from plainsql_server.directory.organizations import OrganizationRecord

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Purged:
    """What is left of a purged organization."""

    id: str
    databases_dropped: int
    left: list[str]


async def purge_organization(directory: Directory, organization: OrganizationRecord, applied_after_s: float) -> Purged:
    """Drops all databases of an organization, then deletes it. Nodes follow a change in the directory in that time.

    Raises ConflictError if a database can't be dropped now; everything else of it is closed by then.
    """
    await purge.close(directory, organization.id, OPERATOR)
    cells = await purge.own_cells(directory, organization.id)
    dropped = 0
    for _ in range(_TRIES):
        for database_id in await purge.database_ids(directory, organization.id):
            await _drop(directory, database_id)
            dropped += 1
        # What requests used until now is counted for databases that are still known. A creation may have been running.
        await asyncio.sleep(applied_after_s)
        entries = await purge.purge(directory, organization.id, OPERATOR)
        if entries is not None:
            return Purged(
                organization.id, dropped, [*_left(entries), *(f"the cell {name}, empty and full" for name in cells)]
            )
    raise ConflictError("purge_overtaken", "Databases of the organization were created meanwhile.", hint="Try again.")


async def _drop(directory: Directory, database_id: str) -> None:
    database = await databases.get(directory, database_id)
    try:
        await databases.delete(directory, database, restore_s=0, restorable=False)
        await databases.drop(directory, await databases.get(directory, database_id))
    except ServiceError as error:
        raise ConflictError(
            "purge_incomplete",
            f"The database {database_id} on the cell {database.cell_name!r} can't be dropped now. The organization"
            " is closed, but not purged.",
            hint="Run the command again when the cell responds. If the cell is lost, remove it first.",
            internal_context=error.internal_context or error.message,
        ) from error
    now = await stored.find_by_id(directory, database_id)
    if now is not None and now.state is not stored.DatabaseState.DELETED:
        raise ConflictError("purge_incomplete", f"The database {database_id} is {now.state}.", hint="Try again.")


def _left(entries: int) -> list[str]:
    return [
        f"{entries} entries of the audit log, with ids only, for {KEPT.days} days",
        "rate-limit counters in Redis, until they expire within minutes",
        "log lines of the planes, with ids only, as long as you keep logs",
        "backups of the databases and of the directory, and WAL archives of its cells, as long as you keep them",
    ]
