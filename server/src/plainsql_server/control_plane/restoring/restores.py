"""Restores to a point in time: the rules for asking for one.

    restore = await request(directory, database, point, by)
    restore = await request_branch(directory, "shop-before", NewBranch(database, None), point, by)

The database becomes what it was at that time, or a branch does. The control plane only records what is wanted: the
archive, and the key that it is encrypted with, are where a worker of the cell runs
(`operations/point_in_time/worker.py`).
"""

import asyncio
from datetime import datetime

from plainsql_server.control_plane import branches
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.core.actor import Actor
from plainsql_server.core.clock import now
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, LimitError, RequestError
from plainsql_server.directory import databases
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.restoring.restores import RestoreLimits, RestoreRecord
from plainsql_server.directory.restoring.workers import find_worker

# A worker does one restore at a time, so more unfinished ones would only wait. What a restore costs does not depend on
# the size of its database: the WAL of the whole cell is read.
LIMITS = RestoreLimits(unfinished=2, a_day=20)
# Databases of an organization that have content which restores have replaced. PostgreSQL has no quotas, and each takes
# as much room as the database until it can no longer be restored.
REPLACED_MOST = 3
# A worker says every 5 seconds that it is there.
SEEN_WITHIN_S = 60.0
# How long restores wait if the workers have gone, and for workers that have too much to do.
_UNSEEN_S = 900.0
_WAITED_S = 24 * 3600.0
# How long a branch stays reserved that waits to be filled, or is being filled. The restore ends it before that.
RESERVED_S = 36 * 3600.0
# How long restores that have ended are listed.
_KEPT_S = 90 * 24 * 3600.0


async def request(directory: Directory, database: DatabaseRecord, point: datetime, by: Actor) -> RestoreRecord:
    """Asks for a database to become what it was at a time. Its content of today can be restored for a while.

    Raises RequestError for a time that can't be restored, ConflictError if the database is not ready or is being
    restored already, LimitError if the organization has reached a limit, and EngineError if no worker is there.
    """
    await _check(directory, database, point)
    replaced = await restores.count_replaced(directory, database.organization_id)
    if replaced >= REPLACED_MOST:
        raise LimitError(
            "restore_limit",
            f"Your organization has {replaced} databases with content that was replaced by restores, and may have"
            f" {REPLACED_MOST}.",
            hint="Delete one of them permanently: DELETE /v1/databases/{id}?restorable=false.",
        )
    return await _insert(directory, database, database, point, by)


async def request_branch(
    directory: Directory, name: str, branch: NewBranch, point: datetime, by: Actor
) -> RestoreRecord:
    """Asks for a new database with what its parent was at a time.

    The new database is there at once, and can be used when the restore is done. If that fails, it is deleted. Raises
    the errors of `request` and of `branches.create`.
    """
    parent = branch.parent
    await _check(directory, parent, point)
    made = await branches.reserve(directory, parent.organization_id, name, branch, by, reserved_s=RESERVED_S)
    try:
        return await _insert(directory, parent, made, point, by)
    except (Exception, asyncio.CancelledError):
        await branches.withdraw(directory, made)
        raise


async def get(directory: Directory, restore_id: str, organization_id: str) -> RestoreRecord:
    """The restore with that id. Raises AccessError if there is none in that organization."""
    found = await restores.find(directory, restore_id, organization_id)
    if found is None:
        raise AccessError("restore_not_found", f"There is no restore {restore_id!r}.")
    return found


async def tidy(directory: Directory) -> None:
    """Ends the restores that no worker takes up, and forgets those that ended long ago."""
    gone = EngineError("restore_unavailable", "The service could not restore the database in time.", hint="Try again.")
    await restores.fail_unattended(directory, _UNSEEN_S, _WAITED_S, gone)
    await restores.delete_old(directory, _KEPT_S)


async def _check(directory: Directory, database: DatabaseRecord, point: datetime) -> None:
    if point.tzinfo is None:
        raise RequestError("invalid_time", "`at` needs a time zone.")
    if point > now():
        raise RequestError("invalid_time", "`at` is in the future.")
    if database.state is not DatabaseState.READY:
        raise ConflictError("wrong_state", f"The database {database.name!r} is {database.state}.")
    worker = await find_worker(directory, database.cell_id, SEEN_WITHIN_S)
    if worker is None:
        raise EngineError(
            "restore_unavailable", "The service can't restore this database to a point in time at the moment.",
            retry_after_ms=60_000,
        )  # fmt: skip
    since = await databases.content_since(directory, database.id)
    if point < since:
        raise RequestError(
            "not_in_archive",
            f"The database has its content since {_shown(since)}: it was created, replaced or moved then. It can't be"
            " restored to an earlier time.",
        )
    if worker.archive_since is not None and point < worker.archive_since:
        raise RequestError(
            "archive_too_short", f"That time is too long ago. The archive begins at {_shown(worker.archive_since)}."
        )


async def _insert(
    directory: Directory, database: DatabaseRecord, target: DatabaseRecord, point: datetime, by: Actor
) -> RestoreRecord:
    return await restores.insert(directory, database, target, point, by, limits=LIMITS, reserved_s=RESERVED_S)


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
