"""Rules about databases: where a new one goes, how many there may be, and what may be done with one in which state.

Owns the order of steps between directory and cell. The directory knows a database, in state creating, before
anything of it exists on a cell, and marks it deleted after nothing of it does, so that nothing on a cell is
ever unknown to the directory. `control_plane/finishing.py` finishes what a crash leaves half done.
"""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from plainsql_server.control_plane.cell_work import work_of
from plainsql_server.control_plane.names import check_database_name
from plainsql_server.control_plane.states import RESTORABLE, DatabaseAction, sources
from plainsql_server.core.actor import OPERATOR, SERVICE, Actor
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, LimitError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.names import DATABASE_NAME
from plainsql_server.directory import cells, databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState, NewDatabase
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.admin.provisioning import EngineNames
from plainsql_server.limits.tiers import TIERS

# How long whoever works on a database has it for itself. Creating takes a fraction of a second, so that longer means
# that it died; and if it did not, the lock on the cell keeps the two apart.
CLAIM_S = 10.0
_SIZES_TIMEOUT_S = 1.0


async def create(directory: Directory, organization_id: str, name: str, by: Actor = OPERATOR) -> DatabaseRecord:
    """A new database, ready to use; the organization's default if it is its first.

    A database of that name whose creation failed or was cut short is finished instead. Raises RequestError
    for a name that cannot be, ConflictError for a taken one, LimitError when the tier allows no more, and
    EngineError or InternalError when the cell fails, which leaves the database in state failed.
    Cancelling it leaves state creating.
    """
    check_database_name(name)
    database = await databases.find(directory, organization_id, name)
    if database is None:
        database = await insert(directory, organization_id, name, by)
    elif database.state not in sources(DatabaseAction.FINISH):
        raise ConflictError("name_taken", f"There is a database named {name!r} already.")
    return await finish(directory, database, by)


async def finish(directory: Directory, database: DatabaseRecord, by: Actor = SERVICE) -> DatabaseRecord:
    """The database, ready, whatever of it was made before; or as it is, if somebody deleted it meanwhile."""
    possible = sources(DatabaseAction.FINISH)

    async def is_wanted() -> bool:
        now = await databases.find_by_id(directory, database.id)
        return now is not None and now.state in possible

    cell = await cell_of(directory, database)
    try:
        async with work_of(directory).turn(cell.id):
            await provisioning.create_database(
                cell.conninfo, cell.admin_role, names_of(database), database.record_secret, is_wanted
            )
    except ServiceError as error:
        await _note_failure(directory, database, error)
        raise
    ready = await databases.set_state(
        directory, database.id, DatabaseState.READY, only_from=possible, action="database.finish", by=by
    )
    return ready or await get(directory, database.id)


async def drop(directory: Directory, database: DatabaseRecord) -> None:
    """Takes a database off its cell, if its deletion is due; then nothing brings it back."""
    cell = await cell_of(directory, database)

    async def is_due() -> bool:
        return await databases.is_due_for_dropping(directory, database.id, database.engine_name)

    work = work_of(directory)
    async with work.turn(cell.id):
        is_gone = await provisioning.drop_database(cell.conninfo, cell.admin_role, names_of(database), is_due)
    if is_gone:
        work.forget_size(database.id)
        await databases.set_deleted(directory, database.id, SERVICE)


async def get(directory: Directory, database_id: str, organization_id: str | None = None) -> DatabaseRecord:
    """The database. Raises AccessError if there is none of that id, or not in that organization."""
    found = await databases.find_by_id(directory, database_id, organization_id)
    if found is None:
        raise AccessError("database_not_found", f"There is no database {database_id!r}.")
    return found


async def get_by_name(directory: Directory, organization_id: str, name: str) -> DatabaseRecord:
    """An organization's database of that name. Raises AccessError if there is none."""
    found = await databases.find(directory, organization_id, name) if DATABASE_NAME.match(name) else None
    if found is None:
        raise AccessError("database_not_found", f"There is no database {name!r} in this organization.")
    return found


async def list_(
    directory: Directory, organization_id: str, limit: int | None = None, after: str | None = None
) -> list[DatabaseRecord]:
    """An organization's databases, oldest first."""
    return await databases.list_(directory, organization_id, limit, after)


async def sizes_bytes(directory: Directory, listed: Sequence[DatabaseRecord]) -> dict[str, int]:
    """How much room each of these takes on its cell, or took some seconds ago, by id.

    Without those whose cell does not answer at once.
    """
    for cell_id in {database.cell_id for database in _without_size(directory, listed)}:
        try:
            async with asyncio.timeout(_SIZES_TIMEOUT_S), work_of(directory).turn(cell_id):
                await _read_sizes(directory, cell_id, listed)
        except (ServiceError, TimeoutError):
            # A size is worth neither an error nor a wait; health checks tell of a cell that is away.
            continue
    sizes = {database.id: work_of(directory).remembered_size(database.id) for database in listed}
    return {id_: size for id_, size in sizes.items() if size is not None}


def _without_size(directory: Directory, listed: Sequence[DatabaseRecord]) -> list[DatabaseRecord]:
    return [database for database in listed if work_of(directory).remembered_size(database.id) is None]


async def _read_sizes(directory: Directory, cell_id: str, listed: Sequence[DatabaseRecord]) -> None:
    # Looked at again, since others may have read them while this one waited for its turn.
    wanted = [database for database in _without_size(directory, listed) if database.cell_id == cell_id]
    if not wanted:
        return
    cell = await cell_of(directory, wanted[0])
    names = {database.engine_name: database.id for database in wanted}
    found = await provisioning.sizes_bytes(cell.conninfo, cell.admin_role, list(names))
    work_of(directory).remember_sizes({names[name]: size for name, size in found.items() if size is not None})


async def rename(directory: Directory, database: DatabaseRecord, name: str, by: Actor) -> DatabaseRecord:
    """The database, renamed. Raises RequestError or ConflictError for the name, ConflictError in other states."""
    check_database_name(name)
    action = DatabaseAction.RENAME
    changed = await databases.rename(directory, database.id, name, only_from=sources(action), by=by)
    return changed or await _refuse(directory, database, action)


async def make_default(directory: Directory, database: DatabaseRecord, by: Actor) -> DatabaseRecord:
    """The database, now the one that requests go to which name none."""
    action = DatabaseAction.MAKE_DEFAULT
    changed = await databases.make_default(
        directory, database.id, database.organization_id, only_from=sources(action), by=by
    )
    return changed or await _refuse(directory, database, action)


async def rename_and_make_default(
    directory: Directory, database: DatabaseRecord, name: str, by: Actor
) -> DatabaseRecord:
    """The database, renamed and the default. If one of them cannot be, neither is done. Raises as both do."""
    check_database_name(name)
    action = DatabaseAction.MAKE_DEFAULT
    changed = await databases.rename_and_make_default(
        directory, database.id, database.organization_id, name,
        only_from=sources(action) & sources(DatabaseAction.RENAME), by=by,
    )  # fmt: skip
    return changed or await _refuse(directory, database, action)


async def suspend(directory: Directory, database: DatabaseRecord, by: Actor = OPERATOR) -> DatabaseRecord:
    """The database, which refuses every request from now on, and keeps its data."""
    return await _set_state(directory, database, DatabaseAction.SUSPEND, DatabaseState.SUSPENDED, by)


async def resume(directory: Directory, database: DatabaseRecord, by: Actor = OPERATOR) -> DatabaseRecord:
    """The database, no longer suspended."""
    return await _set_state(directory, database, DatabaseAction.RESUME, DatabaseState.READY, by)


async def delete(
    directory: Directory, database: DatabaseRecord, *, restore_s: float, restorable: bool, by: Actor = OPERATOR
) -> DatabaseRecord:
    """The database, being deleted: it can be restored for `restore_s`, unless it never was ready or `restorable` is
    false, and is dropped then. A second time changes nothing, unless it says that there shall be no way back."""
    action = DatabaseAction.DELETE
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
        return deleting
    current = await get(directory, database.id)
    return current if current.state is DatabaseState.DELETING else await _refuse(directory, database, action)


async def restore(directory: Directory, database: DatabaseRecord, by: Actor = OPERATOR) -> DatabaseRecord:
    """The database, as it was before it was deleted. Raises ConflictError if it is not, or it is too late."""
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
    """Raises the error for an action that found nothing to change."""
    current = await get(directory, database.id)
    if current.state is DatabaseState.DELETED:
        raise AccessError("database_not_found", f"There is no database {database.id!r}.")
    reason = ""
    if action is DatabaseAction.RESTORE and current.state is DatabaseState.DELETING:
        reason = " and cannot be restored any more"
    raise ConflictError("wrong_state", f"The database {current.name!r} is {current.state}{reason}.")


async def insert(
    directory: Directory, organization_id: str, name: str, by: Actor, *,
    as_draft_s: float = 0, counted: bool = True, on: cells.CellRecord | None = None,
) -> DatabaseRecord:  # fmt: skip
    """The database as the directory knows it before anything of it exists: to be created, or a draft for so long.

    It goes to the cell that has most room for it, or to the one that is said, as a copy that no customer knows of.
    Raises LimitError when the tier allows no more, unless it is not `counted`; ConflictError for a taken name.
    """
    organization = await organizations.find(directory, organization_id)
    if organization is None:
        raise AccessError("organization_not_found", f"There is no organization {organization_id!r}.")
    cell = on or await cells.roomiest(directory, organization_id, organization.tier)
    if cell is None:
        raise EngineError("no_active_cell", "There is no cell that takes new databases.", retry_after_ms=60_000)
    names = provisioning.new_names()
    new = NewDatabase(
        id=new_id(Kind.DATABASE),
        organization_id=organization_id,
        name=name,
        cell_id=cell.id,
        engine_name=names.database,
        owner_role=names.owner_role,
        reader_role=names.reader_role,
    )
    at_most = TIERS[organization.tier].databases if counted else None
    inserted = await databases.insert(
        directory, new, at_most, as_draft_s or CLAIM_S, by, as_draft=as_draft_s > 0, audited=on is None
    )
    if inserted is None:
        raise LimitError("database_limit", f"The tier {organization.tier} allows {at_most} databases; all are used.")
    return inserted


async def cell_of(directory: Directory, database: DatabaseRecord) -> cells.CellRecord:
    """The cell that holds a database."""
    cell = await cells.find(directory, database.cell_id)
    assert cell is not None, "a foreign key keeps a cell that has databases"
    return cell


def names_of(database: DatabaseRecord) -> EngineNames:
    """What a database and its roles are called on its cell."""
    return EngineNames(database.engine_name, database.owner_role, database.reader_role)


async def _note_failure(directory: Directory, database: DatabaseRecord, cause: ServiceError) -> None:
    try:
        await databases.set_state(
            directory, database.id, DatabaseState.FAILED,
            only_from=sources(DatabaseAction.FAIL), action="database.fail", by=SERVICE,
        )  # fmt: skip
    except ServiceError as error:
        # The caller gets the first cause. The state stays creating, which the next attempt finishes as well.
        cause.add_note(f"The state could not be set to failed: {error.internal_context}")
