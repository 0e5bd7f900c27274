"""Creates, changes, deletes and restores databases.

The order of steps ensures that nothing on a cell is ever unknown to the directory: a database is recorded, in state
creating, before anything of it exists on the cell, and is marked deleted only after nothing of it is left there.
`control_plane/finishing.py` completes what a crash interrupts.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

from plainsql_server.control_plane.cell_work import work_of
from plainsql_server.control_plane.names import check_database_name
from plainsql_server.control_plane.states import RESTORABLE, DatabaseAction, sources
from plainsql_server.core.actor import OPERATOR, SERVICE, Actor
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, LimitError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.names import DATABASE_ID, DATABASE_NAME
from plainsql_server.directory import cells, databases, organizations
from plainsql_server.directory.branching.daily_limit import DailyLimit
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState, NewDatabase
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.sealing.neighbours import key_missing
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.admin.provisioning import EngineNames
from plainsql_server.limits.tiers import TIERS

# How long a claim on a database lasts. Creating takes a fraction of a second, so after this time the process has
# probably died. If it has not, the lock on the cell keeps the two processes apart.
CLAIM_S = 10.0
_SIZES_TIMEOUT_S = 1.0
_LATER = "Try again when it is ready."


async def create(directory: Directory, organization_id: str, name: str, by: Actor = OPERATOR) -> DatabaseRecord:
    """Creates an empty database, ready to use. The organization's first becomes its default.

    If a database of that name exists whose creation failed or was interrupted, completes that one. Raises RequestError
    for an invalid name, ConflictError if it is taken, LimitError if the tier's limit is reached, and EngineError or
    InternalError if the cell fails; the database is then in state failed. Cancelling it leaves the state creating.
    """
    check_database_name(name)
    database = await databases.find(directory, organization_id, name)
    if database is None:
        database = await insert(directory, organization_id, name, by)
    elif database.state not in sources(DatabaseAction.FINISH):
        raise taken(database)
    return await finish(directory, database, by)


async def finish(directory: Directory, database: DatabaseRecord, by: Actor = SERVICE) -> DatabaseRecord:
    """Completes a creation from any step. Returns the database, which may have been deleted meanwhile."""
    possible = sources(DatabaseAction.FINISH)

    async def is_wanted() -> bool:
        now = await databases.find_by_id(directory, database.id)
        return now is not None and now.state in possible

    cell = await cell_of(directory, database)
    # Not in the `try`: a process that can't open the secret leaves the creation to one that can.
    if not directory.secrets.can_open(database.record_secret):
        raise key_missing(by)
    secret = directory.secrets.open(database.record_secret, database.engine_name)
    try:
        async with work_of(directory).slot(cell.id):
            await provisioning.create_database(cell.conninfo, cell.admin_role, names_of(database), secret, is_wanted)
    except ServiceError as error:
        await _note_failure(directory, database, error)
        raise
    ready = await databases.set_state(
        directory, database.id, DatabaseState.READY, only_from=possible, action="database.finish", by=by
    )
    return ready or await get(directory, database.id)


async def drop(directory: Directory, database: DatabaseRecord) -> None:
    """Drops a database from its cell if its deletion is due. It cannot be restored after that."""
    cell = await cell_of(directory, database)

    async def is_due() -> bool:
        return await databases.is_due_for_dropping(directory, database.id, database.engine_name)

    work = work_of(directory)
    if cell.state is cells.CellState.REMOVED:
        # There is no cell any more to drop it from.
        if await is_due():
            await databases.set_deleted(directory, database.id, SERVICE)
        return
    async with work.slot(cell.id):
        is_gone = await provisioning.drop_database(cell.conninfo, cell.admin_role, names_of(database), is_due)
    if is_gone:
        work.forget_size(database.id)
        await databases.set_deleted(directory, database.id, SERVICE)


async def get(directory: Directory, database_id: str, organization_id: str | None = None) -> DatabaseRecord:
    """The database with that id. Raises AccessError if there is none, or not in that organization."""
    found = await databases.find_by_id(directory, database_id, organization_id)
    if found is None:
        raise AccessError("database_not_found", f"There is no database {database_id!r}.")
    return found


async def get_named(directory: Directory, organization_id: str, name: str) -> DatabaseRecord:
    """An organization's database with that name or id. Raises AccessError if there is none."""
    found = await databases.find(directory, organization_id, name) if DATABASE_NAME.match(name) else None
    if found is None:
        raise AccessError("database_not_found", f"There is no database {name!r} in this organization.")
    return found


async def get_shown(directory: Directory, organization_id: str, name: str) -> DatabaseRecord:
    """Like `get_named`. By its id, a database is found even after it was dropped."""
    found = await databases.find_by_id(directory, name, organization_id) if DATABASE_ID.match(name) else None
    return found or await get_named(directory, organization_id, name)


async def list_(
    directory: Directory, organization_id: str, limit: int | None = None, after: str | None = None
) -> list[DatabaseRecord]:
    """An organization's databases, oldest first."""
    return await databases.list_(directory, organization_id, limit, after)


async def list_of_cell(directory: Directory, cell_id: str) -> list[DatabaseRecord]:
    """The databases of a cell, oldest first, without deleted ones and without copies."""
    return await databases.list_of_cell(directory, cell_id)


async def sizes_bytes(directory: Directory, listed: Sequence[DatabaseRecord]) -> dict[str, int]:
    """The size of each database on its cell, by id. A size may be some seconds old.

    Databases whose cell does not answer at once are omitted.
    """
    for cell_id in {database.cell_id for database in _without_size(directory, listed)}:
        try:
            async with asyncio.timeout(_SIZES_TIMEOUT_S), work_of(directory).slot(cell_id):
                await _read_sizes(directory, cell_id, listed)
        except (ServiceError, TimeoutError):
            # A missing size is not worth an error or a wait. Health checks report a cell that is unavailable.
            continue
    sizes = {database.id: work_of(directory).remembered_size(database.id) for database in listed}
    return {id_: size for id_, size in sizes.items() if size is not None}


def _without_size(directory: Directory, listed: Sequence[DatabaseRecord]) -> list[DatabaseRecord]:
    return [database for database in listed if work_of(directory).remembered_size(database.id) is None]


async def _read_sizes(directory: Directory, cell_id: str, listed: Sequence[DatabaseRecord]) -> None:
    # Check again, because another task may have read the sizes while this one waited for its slot.
    wanted = [database for database in _without_size(directory, listed) if database.cell_id == cell_id]
    if not wanted:
        return
    cell = await cell_of(directory, wanted[0])
    names = {database.engine_name: database.id for database in wanted}
    found = await provisioning.sizes_bytes(cell.conninfo, cell.admin_role, list(names))
    work_of(directory).remember_sizes({names[name]: size for name, size in found.items() if size is not None})


async def rename(directory: Directory, database: DatabaseRecord, name: str, by: Actor) -> DatabaseRecord:
    """Renames a database. Raises RequestError for an invalid name; ConflictError if it is taken or in a wrong state."""
    check_database_name(name)
    action = DatabaseAction.RENAME
    changed = await databases.rename(directory, database.id, name, only_from=sources(action), by=by)
    return changed or await _refuse(directory, database, action)


async def make_default(directory: Directory, database: DatabaseRecord, by: Actor) -> DatabaseRecord:
    """Makes a database the default: requests that name no database use it."""
    action = DatabaseAction.MAKE_DEFAULT
    changed = await databases.make_default(
        directory, database.id, database.organization_id, only_from=sources(action), by=by
    )
    return changed or await _refuse(directory, database, action)


async def rename_and_make_default(
    directory: Directory, database: DatabaseRecord, name: str, by: Actor
) -> DatabaseRecord:
    """Does both or neither. Raises the errors of `rename` and `make_default`."""
    check_database_name(name)
    action = DatabaseAction.MAKE_DEFAULT
    changed = await databases.rename_and_make_default(
        directory, database.id, database.organization_id, name,
        only_from=sources(action) & sources(DatabaseAction.RENAME), by=by,
    )  # fmt: skip
    return changed or await _refuse(directory, database, action)


async def suspend(directory: Directory, database: DatabaseRecord, by: Actor = OPERATOR) -> DatabaseRecord:
    """Suspends a database: it rejects every request and keeps its data."""
    return await _set_state(directory, database, DatabaseAction.SUSPEND, DatabaseState.SUSPENDED, by)


async def resume(directory: Directory, database: DatabaseRecord, by: Actor = OPERATOR) -> DatabaseRecord:
    """Resumes a suspended database."""
    return await _set_state(directory, database, DatabaseAction.RESUME, DatabaseState.READY, by)


async def delete(
    directory: Directory, database: DatabaseRecord, *, restore_s: float, restorable: bool, by: Actor = OPERATOR
) -> DatabaseRecord:
    """Starts to delete a database.

    It can be restored for `restore_s` and is then dropped. If it was never ready, or `restorable` is false, it cannot
    be restored. A repeated call changes nothing, except that `restorable=False` ends the time for restoring.
    """
    action = DatabaseAction.DELETE
    if (await get(directory, database.id)).is_being_branched:
        if await restores.cancel(directory, database.id, _canceled()):
            return await get(directory, database.id)
        raise ConflictError("wrong_state", f"The database {database.name!r} is still being copied.", hint=_LATER)
    deletable = sources(action) - {DatabaseState.DELETING}
    if not restorable:
        given_up = await databases.give_up(directory, database.id, by)
        if given_up is not None:
            return given_up
    deleting = await databases.begin_deletion(
        directory,
        database.id,
        only_from=deletable,
        restorable=RESTORABLE if restorable else frozenset(),
        restore_s=restore_s,
        by=by,
    )
    if deleting is not None:
        # If the process dies before this, the restore finds the database deleted.
        await restores.cancel(directory, database.id, _canceled())
        return deleting
    current = await get(directory, database.id)
    return current if current.state is DatabaseState.DELETING else await _refuse(directory, database, action)


def _canceled() -> ConflictError:
    return ConflictError("restore_canceled", "The database was deleted before the restore was done.")


async def restore(directory: Directory, database: DatabaseRecord, by: Actor = OPERATOR) -> DatabaseRecord:
    """Restores a deleted database. Raises ConflictError if it is not being deleted, or can no longer be restored."""
    restored = await databases.restore(directory, database.id, by)
    return restored or await _refuse(directory, database, DatabaseAction.RESTORE)


async def _set_state(
    directory: Directory, database: DatabaseRecord, action: DatabaseAction, state: DatabaseState, by: Actor
) -> DatabaseRecord:
    changed = await databases.set_state(
        directory, database.id, state, only_from=sources(action), action=f"database.{action}", by=by
    )
    return changed or await _refuse(directory, database, action)


async def _refuse(directory: Directory, database: DatabaseRecord, action: DatabaseAction) -> NoReturn:
    """Raises the error for an action that changed nothing."""
    current = await get(directory, database.id)
    if current.state is DatabaseState.DELETED:
        raise AccessError("database_not_found", f"There is no database {database.id!r}.")
    reason = ""
    if action is DatabaseAction.RESTORE and current.state is DatabaseState.DELETING:
        reason = " and can no longer be restored"
    raise ConflictError("wrong_state", f"The database {current.name!r} is {current.state}{reason}.")


async def insert(
    directory: Directory, organization_id: str, name: str, by: Actor, *,
    as_draft_s: float = 0, counted: bool = True, on: cells.CellRecord | None = None, branch_of: str | None = None,
    expires_at: datetime | None = None,
) -> DatabaseRecord:  # fmt: skip
    """Records a database in the directory before anything of it exists: one to be created, or a draft for `as_draft_s`.

    It goes to the cell with the most room. With `on` it goes to that cell, as a copy that customers do not see unless
    it is a branch of the database `branch_of`. Raises LimitError if a limit of the tier is reached (unless not
    `counted`), ConflictError if the name is taken.
    """
    organization = await organizations.find_by_id(directory, organization_id)
    if organization is None:
        raise AccessError("organization_not_found", f"There is no organization {organization_id!r}.")
    cell = on or await cells.roomiest(directory, organization_id, organization.tier)
    if cell is None:
        raise EngineError("no_active_cell", "No cell accepts new databases at the moment.", retry_after_ms=60_000)
    names = provisioning.new_names()
    new = NewDatabase(
        id=new_id(Kind.DATABASE),
        organization_id=organization_id,
        name=name,
        cell_id=cell.id,
        engine_name=names.database,
        owner_role=names.owner_role,
        reader_role=names.reader_role,
        branch_of=branch_of,
        expires_at=expires_at,
    )
    tier = organization.tier
    at_most = TIERS[tier].databases if counted else None
    inserted = await databases.insert(
        directory,
        new,
        at_most,
        as_draft_s or CLAIM_S,
        by,
        as_draft=as_draft_s > 0,
        audited=on is None or branch_of is not None,
        branches=DailyLimit(tier, TIERS[tier].branches_per_day) if counted else None,
    )
    if inserted is None:
        raise LimitError(
            "database_limit",
            f"Database limit reached: the {tier} tier allows {at_most} databases.",
            hint=_how_to_free(await databases.list_(directory, organization_id)),
        )
    return inserted


def taken(database: DatabaseRecord) -> ConflictError:
    """The error for a new database with the name of this one."""
    if database.is_being_branched:
        return ConflictError("name_taken", f"A database named {database.name!r} is being made at this moment.")
    if database.state is not DatabaseState.DELETING:
        return ConflictError("name_taken", f"A database named {database.name!r} already exists.")
    return ConflictError(
        "name_taken",
        f"A database named {database.name!r} was deleted, and keeps its name until it is dropped.",
        hint=_how_to_free([database]),
    )


def _how_to_free(listed: Sequence[DatabaseRecord]) -> str | None:
    """How to free the slot and the name of the first deleted database that can still be restored; None without one."""
    for database in listed:
        if database.state is DatabaseState.DELETING and database.restores_to is not None:
            until = f" until {database.restorable_until:%Y-%m-%d %H:%M} UTC" if database.restorable_until else ""
            return (
                f"The deleted database {database.name!r} can be restored{until}, and keeps its slot and its name until"
                f" then. To free them now, delete it permanently: DELETE /v1/databases/{database.id}?restorable=false."
            )
    return None


async def cell_of(directory: Directory, database: DatabaseRecord) -> cells.CellRecord:
    """The cell that holds a database."""
    cell = await cells.find(directory, database.cell_id)
    assert cell is not None, "a foreign key guarantees that the cell exists"
    return cell


def names_of(database: DatabaseRecord) -> EngineNames:
    """The names of a database and its roles on its cell."""
    return EngineNames(database.engine_name, database.owner_role, database.reader_role)


async def _note_failure(directory: Directory, database: DatabaseRecord, cause: ServiceError) -> None:
    try:
        await databases.set_state(
            directory, database.id, DatabaseState.FAILED,
            only_from=sources(DatabaseAction.FAIL), action="database.fail", by=SERVICE,
        )  # fmt: skip
    except ServiceError as error:
        # The caller gets the original error. The state stays creating, which the next attempt completes just as well.
        cause.add_note(f"Could not set the state to failed: {error.internal_context}")
