"""Rules about databases: where a new one goes, how many there may be, and how one comes to be ready.

Owns the order of steps between directory and cell. The directory knows a database, in state creating, before
anything of it exists on a cell, so that nothing on a cell is ever unknown to the directory.
"""

import secrets

from plainsql_server.control_plane.names import check_database_name
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, LimitError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import cells, databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState, NewDatabase
from plainsql_server.engine import provisioning
from plainsql_server.engine.provisioning import EngineNames
from plainsql_server.limits.tiers import TIERS

_UNFINISHED = frozenset([DatabaseState.CREATING, DatabaseState.FAILED])


async def create(directory: Directory, organization_id: str, name: str) -> DatabaseRecord:
    """A new database, ready to use; the organization's default if it is its first.

    A database of that name whose creation failed or was cut short is finished instead. Raises RequestError
    for a name that cannot be, ConflictError for a taken one, LimitError when the tier allows no more, and
    EngineError or InternalError when the cell fails, which leaves the database in state failed.
    Cancelling it leaves state creating.
    """
    check_database_name(name)
    database = await databases.find(directory, organization_id, name)
    if database is None:
        database = await _insert(directory, organization_id, name)
    elif database.state not in _UNFINISHED:
        raise ConflictError("name_taken", f"There is a database named {name!r} already.")
    return await _finish(directory, database)


async def list_(directory: Directory, organization_id: str) -> list[DatabaseRecord]:
    """An organization's databases, oldest first."""
    return await databases.list_(directory, organization_id)


async def _insert(directory: Directory, organization_id: str, name: str) -> DatabaseRecord:
    organization = await organizations.find(directory, organization_id)
    if organization is None:
        raise AccessError("organization_not_found", f"There is no organization {organization_id!r}.")
    cell = await cells.emptiest(directory)
    if cell is None:
        raise EngineError("no_active_cell", "There is no cell that takes new databases.", retry_after_ms=60_000)
    names = provisioning.new_names()
    new = NewDatabase(
        id=new_id(Kind.DATABASE),
        organization_id=organization_id,
        name=name,
        cell_id=cell.id,
        engine_name=names.database,
        record_secret=secrets.token_hex(32),
        owner_role=names.owner_role,
        reader_role=names.reader_role,
    )
    at_most = TIERS[organization.tier].databases
    inserted = await databases.insert(directory, new, at_most)
    if inserted is None:
        raise LimitError("database_limit", f"The tier {organization.tier} allows {at_most} databases; all are used.")
    return inserted


async def _finish(directory: Directory, database: DatabaseRecord) -> DatabaseRecord:
    names = EngineNames(database.engine_name, database.owner_role, database.reader_role)
    cell = await cells.find(directory, database.cell_id)
    assert cell is not None, "a foreign key keeps a cell that has databases"
    try:
        await provisioning.create_database(cell.conninfo, cell.admin_role, names, database.record_secret)
    except ServiceError as error:
        await _note_failure(directory, database, error)
        raise
    await _set_state(directory, database, DatabaseState.READY)
    ready = await databases.find(directory, database.organization_id, database.name)
    assert ready is not None, "only a ready database can be deleted, and not within the same moment"
    return ready


async def _note_failure(directory: Directory, database: DatabaseRecord, cause: ServiceError) -> None:
    try:
        await _set_state(directory, database, DatabaseState.FAILED)
    except ServiceError as error:
        # The caller gets the first cause. The state stays creating, which the next attempt finishes as well.
        cause.add_note(f"The state could not be set to failed: {error.internal_context}")


async def _set_state(directory: Directory, database: DatabaseRecord, state: DatabaseState) -> None:
    await databases.set_state(directory, database.id, state, only_from=_UNFINISHED)
