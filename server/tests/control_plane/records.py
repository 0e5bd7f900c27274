"""Records of spanning transactions as tests put them into the directory: of processes that are gone."""

from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord


async def store_record(
    directory: Directory, database: DatabaseRecord, gid: str, state: str, *, freed: bool = False, hold_s: float = 60.0
) -> str:
    """The id of a record of a transaction of that database."""
    id_ = new_id(Kind.TRANSACTION)
    statement = """
        INSERT INTO spanning_transactions (id, organization_id, gid, database_ids, state, held_until, freed_at)
        VALUES (%s, %s, %s, ARRAY[%s], %s, now() + %s * interval '1 s', CASE WHEN %s THEN now() END)
    """
    values = (id_, database.organization_id, gid, database.id, state, hold_s, freed)
    async with directory.connection() as connection:
        await connection.execute(statement, values)
    return id_
