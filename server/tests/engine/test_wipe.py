"""What a reset finds to drop, on a real PostgreSQL."""

import psycopg

from plainsql_server.engine.execution import wipe
from server.tests.engine.conftest import ROLE
from server.tests.postgres import Postgres

MADE = [
    "create table gone (n int)", "create view gone_too as select n from gone", "create table kept (n int)",
    "create function lost() returns int language sql as 'select 1'",
]  # fmt: skip


def test_what_another_session_drops_meanwhile_is_not_found(postgres: Postgres, database: str) -> None:
    with postgres.connect(ROLE, database) as other, postgres.connect(ROLE, database) as connection:
        for sql in MADE:
            other.execute(sql)
        # This snapshot shows who owns what as it was; the objects themselves are looked up as they are.
        connection.execute("begin isolation level repeatable read")
        assert names(found(connection)) == {"public.gone", "public.gone_too", "public.kept", "public.lost()"}
        other.execute("drop table gone cascade")
        other.execute("drop function lost")
        assert names(found(connection)) == {"public.kept"}
        connection.execute("rollback")


def found(connection: psycopg.Connection) -> list[wipe.Droppable]:
    _, _, statement, _ = wipe.find([ROLE])
    assert isinstance(statement, tuple)
    sql, params = statement
    rows = psycopg.RawCursor(connection).execute(sql, [param and param.decode() for param in params]).fetchall()
    return wipe.read_found([[value and value.encode() for value in row] for row in rows])


def names(objects: list[wipe.Droppable]) -> set[str]:
    return {each.identity for each in objects}
