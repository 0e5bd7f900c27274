"""Spanning transactions of processes that are gone: their records in the directory, and what is prepared on a cell."""

from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.execution.spanning import gid_of, new_gid
from server.tests.postgres import Postgres


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


def prepare(postgres: Postgres, database: DatabaseRecord) -> str:
    """The gid of a transaction that makes a table."""
    gid = new_gid()
    with postgres.connect(database.owner_role, database.engine_name) as connection:
        connection.execute("begin")
        connection.execute("create table made ()")
        connection.execute(f"prepare transaction '{gid_of(gid, 0)}'".encode())
    return gid


def is_prepared(postgres: Postgres, gid: str) -> bool:
    with postgres.connect() as admin:
        return bool(admin.execute("select from pg_prepared_xacts where gid = %s", (gid_of(gid, 0),)).fetchall())


def is_made(postgres: Postgres, database: DatabaseRecord) -> bool:
    with postgres.connect(database=database.engine_name) as admin:
        return admin.execute("select to_regclass('public.made') is not null").fetchone() == (True,)


async def unfreed(directory: Directory) -> int:
    async with directory.connection() as connection:
        return (await connection.execute("select from spanning_transactions where freed_at is null")).rowcount
