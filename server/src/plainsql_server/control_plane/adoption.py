"""Adopts a database that is on a cell and not in the directory, as after the directory was restored from a backup."""

import re

from plainsql_server.control_plane import cells
from plainsql_server.control_plane.databases import CLAIM_S, finish
from plainsql_server.control_plane.names import check_database_name
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError, ConflictError, RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import databases
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, NewDatabase
from plainsql_server.engine.admin import adoption

_ENGINE_NAME = re.compile(r"d_[0-9a-f]{24}\Z")


async def adopt(
    directory: Directory, organization_id: str, name: str, cell_name: str, engine_name: str
) -> DatabaseRecord:
    """Makes a database of a cell an organization's database, with its content and its roles, under a new id.

    Its roles, settings and privileges are checked first, and then set as for a new database. The tier's limit does not
    apply. Raises AccessError if there is no such database, ConflictError if the directory knows it, if the name is
    taken, or if something speaks against it.
    """
    check_database_name(name)
    if not _ENGINE_NAME.match(engine_name):
        raise RequestError("invalid_name", f"{engine_name!r} is not the name of a customer's database on a cell.")
    cell = await cells.get(directory, cell_name)
    known = await databases.find_by_engine_name(directory, engine_name)
    if known is not None:
        raise ConflictError(
            "already_known", f"The directory knows {engine_name} as {known.id}, which is {known.state}."
        )
    found = await adoption.examine(cell.conninfo, cell.admin_role, engine_name)
    if found is None:
        raise AccessError("database_not_found", f"The cell {cell.name!r} has no database {engine_name}.")
    if found.names is None or found.problems:
        raise ConflictError(
            "not_adoptable",
            f"The database {engine_name} can't be adopted: {'; '.join(found.problems)}.",
            hint="Correct this on the cell and try again.",
        )
    new = NewDatabase(
        id=new_id(Kind.DATABASE), organization_id=organization_id, name=name, cell_id=cell.id,
        engine_name=engine_name, owner_role=found.names.owner_role, reader_role=found.names.reader_role,
    )  # fmt: skip
    inserted = await databases.insert(directory, new, None, CLAIM_S, OPERATOR, adopted=True)
    assert inserted is not None, "there is no limit"
    return await finish(directory, inserted, OPERATOR)
