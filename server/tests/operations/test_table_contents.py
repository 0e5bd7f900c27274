"""What a rehearsal reads of a live database, however hostile: what is compared, and for how long it locks anything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from psycopg import errors

from plainsql_server.control_plane import cells
from plainsql_server.core.errors import LimitError
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, find_by_engine_name
from plainsql_server.engine.admin.provisioning import admin_connection, create_backup_role
from plainsql_server.operations.point_in_time.table_contents import (
    Contents,
    as_owner,
    contents_of,
    differences,
    lock_tables,
)
from server.tests.operations.stage import Stage

_DEFINED = "create or replace function planned() returns int language plpgsql immutable as"
# PostgreSQL evaluates what is constant when it plans any statement that reads the table.
_PLANNED = f"""
    {_DEFINED} 'begin return 1; end';
    create table t as select g from generate_series(1, 10) g;
    create index on t (planned());
    create index on t (g) where planned() = 1;
    create statistics s on (planned() + g), g from t;
    alter table t add check (planned() > 0);
"""
_HARMS = {"fails": "raise exception ''planned''", "hangs": "perform pg_sleep(600)"}


@asynccontextmanager
async def found(stage: Stage) -> AsyncIterator[tuple[CellRecord, DatabaseRecord]]:
    async with Directory.open(stage.dsn) as directory:
        database = await find_by_engine_name(directory, stage.names()[0])
        assert database is not None
        yield await cells.get(directory, database.cell_id), database


async def contents(stage: Stage, limit_s: float | None = None) -> Contents:
    async with found(stage) as (cell, database):
        return await contents_of(cell, database, limit_s=limit_s)


@pytest.mark.parametrize("harm", _HARMS)
async def test_no_function_of_the_customers_is_called(stage: Stage, harm: str) -> None:
    with stage.owner() as owner:
        owner.execute(_PLANNED.encode())
        owner.execute(f"{_DEFINED} 'begin {_HARMS[harm]}; return 1; end'".encode())
    ((table,),) = [[*(await contents(stage, limit_s=30)).tables.values()]]
    assert (table.name, table.rows) == ("public.t", 10)


async def test_what_differs_is_found_and_the_order_of_rows_does_not_matter(stage: Stage) -> None:
    with stage.owner() as owner:
        owner.execute(
            "create table t (a int, b text); insert into t values (1, 'x'), (1, 'x'), (2, E'y\\n'), (3, null)"
        )
        owner.execute("create table without_columns (); insert into without_columns default values")
        owner.execute("create table generated (a int, b int generated always as (a + 1) stored)")
        owner.execute("insert into generated values (1)")
        before = await contents(stage)
        assert sorted((each.name, each.rows) for each in before.tables.values()) == [
            ("public.generated", 1), ("public.t", 4), ("public.without_columns", 1),
        ]  # fmt: skip
        owner.execute("delete from t where a < 3; insert into t values (2, E'y\\n'), (1, 'x'), (1, 'x')")
        assert differences(before, await contents(stage)) == []
        owner.execute("update t set b = 'null' where a = 3; insert into without_columns default values")
        assert differences(before, await contents(stage)) == [
            "public.t has other values in its 4 rows", "public.without_columns has 2 rows instead of 1",
        ]  # fmt: skip


async def test_values_whose_text_depends_on_other_objects_are_not_compared(stage: Stage) -> None:
    """A role of another customer is gone in one of the copies: then, its number is shown."""
    with stage.postgres.connect() as admin:
        admin.execute("create role passing")
    try:
        with stage.owner() as owner:
            owner.execute("create domain role_of as regrole; create type pair as (r role_of[], a int)")
            owner.execute("create table t (r regrole, a int, l aclitem[], p pair)")
            owner.execute("create table only_roles (r regrole)")
            owner.execute("insert into t values ('passing', 1, '{passing=r/passing}', row(array['passing'], 1)::pair)")
            owner.execute("insert into only_roles values ('passing')")
            before = await contents(stage)
    finally:
        with stage.postgres.connect() as admin:
            admin.execute("drop role passing")
    assert differences(before, await contents(stage)) == []
    with stage.owner() as owner:
        owner.execute("update t set a = 2; insert into only_roles select * from only_roles")
    assert differences(before, await contents(stage)) == [
        "public.t has other values in its 1 rows", "public.only_roles has 2 rows instead of 1",
    ]  # fmt: skip


async def test_a_database_that_takes_too_long_is_given_up(stage: Stage) -> None:
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        with owner.transaction():
            owner.execute("update t set a = 2")
            with pytest.raises(LimitError, match="longer than 1 seconds"):
                await contents(stage, limit_s=1)


async def test_the_customers_tables_are_locked_for_no_longer_than_documented_if_the_process_stands_still(
    stage: Stage,
) -> None:
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        async with found(stage) as (cell, database):
            async with admin_connection(cell.conninfo, cell.admin_role, database.engine_name) as admin:
                await create_backup_role(admin, database.owner_role)
            with pytest.raises(errors.IdleInTransactionSessionTimeout):  # noqa: PT012
                async with as_owner(cell, database) as locker:
                    await lock_tables(locker, 100)
                    owner.execute("set lock_timeout = '20s'")
                    # Nothing gives the lock up but PostgreSQL.
                    owner.execute("insert into t values (2)")
                    await locker.execute("ROLLBACK")


async def test_a_snapshot_ends_if_the_process_stands_still(stage: Stage) -> None:
    """Otherwise, it would keep vacuum from removing rows."""
    async with found(stage) as (cell, database):
        async with admin_connection(cell.conninfo, cell.admin_role, database.engine_name) as admin:
            await create_backup_role(admin, database.owner_role)
        async with as_owner(cell, database) as reader:
            shown = await (await reader.execute("show idle_in_transaction_session_timeout")).fetchone()
    assert shown == ("1min",)
