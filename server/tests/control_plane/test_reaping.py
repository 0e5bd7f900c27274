"""The reaper, on a real cell: what is past its ceiling is ended, what is not is left alone."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import psycopg
import pytest
from prometheus_client import generate_latest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.control_plane.reaping import Ceilings, Reaper
from plainsql_server.core.clock import now
from plainsql_server.core.observation import Observation, Reaped
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.engine.admin.backups import KEEPER, MOVE
from plainsql_server.engine.admin.reaping import OldTransaction
from plainsql_server.engine.admin.snapshot import connected
from plainsql_server.engine.execution.spanning import gid_of, new_gid
from plainsql_server.limits.tiers import TIERS
from plainsql_server.metrics import Metrics
from server.tests.control_plane.records import store_record
from server.tests.postgres import SUPERUSER, Postgres

# Free tenants may write for a tenth of a second and stream for half a second; the others, as long as ever.
SHORT = Ceilings(
    tiers=MappingProxyType(
        {
            **TIERS,
            "free": replace(TIERS["free"], statement_timeout_ms=100, transaction_timeout_ms=100, stream_life_ms=500),
        }
    ),
    grace_s=0,
)


@pytest.fixture
async def database(directory: Directory, organization: OrganizationRecord, cell: CellRecord) -> DatabaseRecord:
    return await databases.create(directory, organization.id, "main")


@pytest.fixture
async def seen() -> list[Observation]:
    return []


@pytest.fixture
async def reaper(directory: Directory, seen: list[Observation]) -> AsyncIterator[Reaper]:
    made = Reaper(directory, seen.append, SHORT)
    yield made
    await made.close()


def tenant(postgres: Postgres, database: DatabaseRecord) -> psycopg.Connection:
    return postgres.connect(database.owner_role, database.engine_name)


async def reaped(reaper: Reaper, seen: list[Observation], what: str) -> int:
    """Looks until something was reaped; how much."""
    async with asyncio.timeout(60):
        while not seen:
            await reaper.look()
            await asyncio.sleep(0.05)
    (found,) = seen
    assert isinstance(found, Reaped), found
    assert found.what == what
    return found.count


def is_open(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("select 1")
    except psycopg.OperationalError:
        return False
    return True


async def test_a_transaction_past_its_ceiling_is_ended_even_if_it_traps_cancels(
    postgres: Postgres, database: DatabaseRecord, reaper: Reaper, seen: list[Observation]
) -> None:
    trap = "do $$ begin loop begin perform pg_sleep(60); exception when query_canceled then null; end; end loop; end $$"
    with tenant(postgres, database) as trapped:
        trapped.execute("create table t ()")
        trapped.execute("begin")
        trapped.execute("insert into t default values")
        running = asyncio.create_task(asyncio.to_thread(trapped.execute, trap))
        assert await reaped(reaper, seen, "transaction") == 1
        with pytest.raises(psycopg.OperationalError):
            await running


async def test_a_reader_may_take_as_long_as_a_stream(
    postgres: Postgres, database: DatabaseRecord, reaper: Reaper, seen: list[Observation]
) -> None:
    with tenant(postgres, database) as reading:
        reading.execute("begin")
        reading.execute("select 1")
        await asyncio.sleep(0.2)
        await reaper.look()
        assert is_open(reading)
        assert await reaped(reaper, seen, "transaction") == 1
        assert not is_open(reading)


@pytest.mark.parametrize(("has_written", "ceiling_s"), [(True, 65.0), (False, 905.0)])
def test_the_ceiling_is_the_longest_statement_or_stream_and_a_grace(*, has_written: bool, ceiling_s: float) -> None:
    limits = replace(TIERS["free"], statement_timeout_ms=30_000, transaction_timeout_ms=60_000, stream_life_ms=900_000)
    ceilings = Ceilings(tiers={"free": limits}, grace_s=5)
    at = OldTransaction(1, now(), "r", ceiling_s, has_written)
    assert not ceilings.is_past(at, "free")
    assert ceilings.is_past(replace(at, age_s=ceiling_s + 0.1), "free")


async def test_other_tiers_have_ceilings_of_their_own(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, reaper: Reaper, seen: list[Observation]
) -> None:
    async with directory.connection() as connection:
        await connection.execute("update organizations set tier = 'standard'")
    with tenant(postgres, database) as writing:
        writing.execute("begin")
        writing.execute("create table t ()")
        await asyncio.sleep(0.7)
        await reaper.look()
        assert is_open(writing)
    assert seen == []


async def test_operators_are_left_alone(postgres: Postgres, cell: CellRecord, reaper: Reaper) -> None:
    with postgres.connect() as operator:
        operator.execute("begin")
        operator.execute("select txid_current()")
        await asyncio.sleep(0.7)
        await reaper.look()
        assert is_open(operator)


async def test_an_orphaned_idle_connection_is_ended(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, seen: list[Observation]
) -> None:
    reaper = Reaper(directory, seen.append, Ceilings(idle_s=0.2))
    with tenant(postgres, database) as idle:
        idle.execute("select 1")
        assert await reaped(reaper, seen, "idle") == 1
        assert not is_open(idle)
    await reaper.close()


async def test_a_tenant_with_too_many_locks_is_ended(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, seen: list[Observation]
) -> None:
    reaper = Reaper(directory, seen.append, Ceilings(locks=100, few_locks=10))
    with tenant(postgres, database) as bomb, tenant(postgres, database) as modest:
        bomb.execute("do $$ begin for i in 1..200 loop execute format('create table t%s ()', i); end loop; end $$")
        for each, tables in ((modest, 50), (bomb, 200)):
            each.execute("begin")
            each.execute(f"do $$ begin for i in 1..{tables} loop execute format('lock table t%s', i); end loop; end $$")
            each.execute("rollback" if each is modest else "select 1")
        assert await reaped(reaper, seen, "locks") == 1
        assert not is_open(bomb)
        assert is_open(modest)
    await reaper.close()


async def test_an_orphaned_prepared_transaction_is_rolled_back_and_a_recorded_one_is_not(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, seen: list[Observation]
) -> None:
    reaper = Reaper(directory, seen.append, Ceilings(prepared_s=0, stray_s=0))
    services = [new_gid() for _ in range(3)]
    await store_record(directory, database, services[0], "open", freed=False)
    await store_record(directory, database, services[1], "aborted", freed=True)
    with tenant(postgres, database) as connection:
        for number, gid in enumerate(["nobodys", *(gid_of(gid, 0) for gid in services)]):
            connection.execute("begin")
            connection.execute(f"create table t{number} ()")
            connection.execute(f"prepare transaction '{gid}'")
        # Of the service's own: one whose transaction is over, and one that nobody knows.
        assert await reaped(reaper, seen, "prepared") == 3
        with postgres.connect(database=database.engine_name) as admin:
            left = admin.execute("select gid from pg_prepared_xacts where database = current_database()").fetchall()
        assert left == [(gid_of(services[0], 0),)]
        connection.execute(f"rollback prepared '{gid_of(services[0], 0)}'")
    await reaper.close()


async def test_a_committed_transaction_still_prepared_on_a_new_leader_is_committed_again(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, seen: list[Observation]
) -> None:
    reaper = Reaper(directory, seen.append, Ceilings(stray_s=0.1))
    gid = new_gid()
    await store_record(directory, database, gid, "committed", freed=True)
    with tenant(postgres, database) as connection:
        connection.execute("begin")
        connection.execute("create table committed_again ()")
        connection.execute(f"prepare transaction '{gid_of(gid, 1)}'")
        assert await reaped(reaper, seen, "prepared") == 1
        assert connection.execute("select from committed_again").fetchall() == []
    await reaper.close()


async def test_prepared_transactions_of_another_service_are_left_alone(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, seen: list[Observation]
) -> None:
    """In a database that the directory does not know."""
    reaper = Reaper(directory, seen.append, Ceilings(stray_s=0))
    gid = gid_of(new_gid(), 0)
    with psycopg.connect(postgres.fresh_database(), autocommit=True) as other:
        other.execute("begin")
        other.execute("create table t ()")
        other.execute(f"prepare transaction '{gid}'".encode())
        await reaper.look()
        assert seen == []
        other.execute(f"rollback prepared '{gid}'".encode())
    await reaper.close()


async def test_a_move_is_exempt_from_reaping_but_its_application_name_exempts_no_one(
    postgres: Postgres, database: DatabaseRecord, reaper: Reaper, seen: list[Observation]
) -> None:
    where = (database.owner_role, database.engine_name)
    async with connected(postgres.conninfo, *where) as owner:
        async with connected(postgres.conninfo, SUPERUSER, database.engine_name, MOVE + KEEPER):
            await owner.execute("begin")
            await owner.execute("select pg_sleep(0.7)")
            await reaper.look()
            assert seen == []
            await owner.execute("select 1")
        assert await reaped(reaper, seen, "transaction") == 1
        with pytest.raises(psycopg.OperationalError):
            await owner.execute("select 1")


async def test_one_process_at_a_time_reaps_a_cell(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, reaper: Reaper, seen: list[Observation]
) -> None:
    await reaper.look()
    second = Reaper(directory, seen.append, Ceilings(idle_s=0))
    with tenant(postgres, database) as idle:
        idle.execute("select 1")
        await second.look()
        assert is_open(idle)
        await reaper.close()
        assert await reaped(second, seen, "idle") >= 1
    await second.close()


async def test_an_unavailable_cell_is_reported_and_checked_again(
    directory: Directory, database: DatabaseRecord, cell: CellRecord, reaper: Reaper, seen: list[Observation]
) -> None:
    async with directory.connection() as connection:
        await connection.execute("update cells set conninfo = 'host=/nowhere'")
    await reaper.look()
    assert [each.event for each in seen] == ["failure"]
    async with directory.connection() as connection:
        await connection.execute("update cells set conninfo = %s", (cell.conninfo,))
    await reaper.look()
    assert len(seen) == 1


async def test_reaped_connections_are_counted() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics(Reaped(now(), "reaped", "local", "idle", 3))
    text = generate_latest(metrics.registry).decode()
    assert re.search(r'^plainsql_reaped_total\{cell="local",what="idle"\} 6\.0$', text, re.MULTILINE)


async def test_many_connections_with_many_locks_each_are_counted_together(
    postgres: Postgres, directory: Directory, organization: OrganizationRecord, database: DatabaseRecord,
    seen: list[Observation],
) -> None:  # fmt: skip
    second = await databases.create(directory, organization.id, "second")
    outsider = await organizations.create(directory, "Stranger", "free")
    other = await databases.create(directory, outsider.id, "main")
    reaper = Reaper(directory, seen.append, Ceilings(locks=150, few_locks=10))
    with tenant(postgres, database) as one, tenant(postgres, second) as two, tenant(postgres, other) as modest:
        for each in (one, two, modest):
            each.execute("do $$ begin for i in 1..100 loop execute format('create table t%s ()', i); end loop; end $$")
            each.execute("begin")
            each.execute("do $$ begin for i in 1..100 loop execute format('lock table t%s', i); end loop; end $$")
        assert await reaped(reaper, seen, "locks") == 2
        assert not is_open(one)
        assert not is_open(two)
        assert is_open(modest)
    await reaper.close()


TRAP = """
    create function trap(i int) returns int language plpgsql immutable as $$
    begin
        -- It may not even see what kind of process it is in.
        if (select backend_type is null from pg_stat_activity where pid = pg_backend_pid()) then
            loop
                begin
                    perform pg_sleep(1000);
                exception when query_canceled then null;
                end;
            end loop;
        end if;
        return i;
    end $$
"""


async def test_maintenance_that_a_tenants_function_keeps_busy_is_ended(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, seen: list[Observation]
) -> None:
    reaper = Reaper(directory, seen.append, Ceilings(maintenance_s=0.5))
    with postgres.connect() as admin, often_maintained(admin):
        # What a session has changed is counted when it ends, at the latest.
        with tenant(postgres, database) as hostile:
            hostile.execute(TRAP)
            hostile.execute("create table t (id int)")
            hostile.execute("create index on t (trap(id))")
            hostile.execute("insert into t select generate_series(1, 500)")
        assert await reaped(reaper, seen, "maintenance") == 1
        with tenant(postgres, database) as hostile:
            hostile.execute("drop table t")
    await reaper.close()


@contextmanager
def often_maintained(admin: psycopg.Connection) -> Iterator[None]:
    """A cell whose tables are looked at every second."""
    admin.execute("alter system set autovacuum_naptime = '1s'")
    admin.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        admin.execute("alter system reset autovacuum_naptime")
        admin.execute("select pg_reload_conf()")


async def test_it_does_not_read_the_names_of_all_roles(
    postgres: Postgres, database: DatabaseRecord, reaper: Reaper
) -> None:
    """A cell with 10,000 databases has three times as many roles, and the reaper looks once per second."""
    with postgres.connect() as admin:
        before = read_whole(admin, "pg_authid")
        await reaper.look()
        await reaper.close()
        # A backend counts what it has read when it ends.
        await until_closed(admin, "plainsql-reaper")
        assert read_whole(admin, "pg_authid") == before


def read_whole(admin: psycopg.Connection, table: str) -> int:
    query = "select seq_scan from pg_stat_sys_tables where relname = %s"
    ((count,),) = admin.execute(query, (table,)).fetchall()
    return int(count)


async def until_closed(admin: psycopg.Connection, application_name: str) -> None:
    query = "select from pg_stat_activity where application_name = %s"
    async with asyncio.timeout(60):
        while admin.execute(query, (application_name,)).fetchall():  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.02)
