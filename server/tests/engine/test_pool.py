"""Pools on a real PostgreSQL: how they grow and shrink, what they lend, and what they throw away."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
import uvloop

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import EngineError, LimitError, Outcome, ServiceError, StatementError
from plainsql_server.core.observation import FailureObserved
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.exchange import drain
from plainsql_server.engine.connection.interrupt import InterruptReason
from plainsql_server.engine.connection.queries import values_and_close
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.execution.execution import ResultStream, Statement
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from server.tests.engine.conftest import ROLE
from server.tests.engine.pooled_cell import (
    ORGANIZATION,
    WAIT_LIMIT_S,
    ask,
    backends,
    cell_of,
    lease_of,
    until,
    wait_for_backends,
)
from server.tests.postgres import SUPERUSER, Postgres


async def test_a_pool_opens_nothing_until_it_is_asked_and_then_only_what_it_needs(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database) as cell:
        assert backends(engine, database) == set()
        for _ in range(20):
            await ask(cell.pool, "select 1")
        assert len(backends(engine, database)) == 1
        async with lease_of(cell.pool) as one, lease_of(cell.pool) as other:
            one.session_state = other.session_state = SessionState.NOTHING
            assert len(backends(engine, database)) == 2
        assert cell.open_connections == 2
    wait_for_backends(engine, database, 0)


async def test_a_pool_opens_no_more_than_its_limit_and_the_next_one_waits(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database, per_pool=2) as cell:
        asked = [ask(cell.pool, "select count(*) from generate_series(1, 20000)") for _ in range(8)]
        await asyncio.gather(*asked)
        assert len(backends(engine, database)) == 2


async def test_a_request_that_finds_no_connection_in_time_is_refused(postgres: Postgres, database: str) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell, lease_of(cell.pool) as lease:
        lease.session_state = SessionState.NOTHING
        with pytest.raises(LimitError) as refused:
            await ask(cell.pool, "select 1", timeout_ms=50)
        assert refused.value.code == "overloaded"


async def test_idle_connections_are_closed_and_used_ones_stay(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database) as cell:
        async with lease_of(cell.pool) as one, lease_of(cell.pool) as other:
            one.session_state = other.session_state = SessionState.NOTHING
        await asyncio.sleep(0.1)
        await ask(cell.pool, "select 1")
        cell.pool.cell.close_idle(0.08)
        wait_for_backends(engine, database, 1)
        assert cell.open_connections == 1
        await ask(cell.pool, "select 1")
        assert cell.open_connections == 1
        await asyncio.sleep(0.1)
        cell.pool.cell.close_idle(0.08)
        wait_for_backends(engine, database, 0)
        assert await ask(cell.pool, "select 1 as a") == [b'{"a":1}']


async def test_a_full_cell_closes_its_longest_idle_connection_for_a_new_one(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database, per_pool=2, per_cell=4) as cell:
        others = [cell.pool_as(postgres, database, role) for role in (ROLE, SUPERUSER)]
        for pool in others:
            async with lease_of(pool) as one, lease_of(pool) as other:
                one.session_state = other.session_state = SessionState.NOTHING
        before = backends(engine, database)
        assert len(before) == 4
        third = cell.pool_as(postgres, "postgres", SUPERUSER)
        assert await ask(third, "select 1 as a") == [b'{"a":1}']
        wait_for_backends(engine, database, 3)
        assert (others[0].open_count, others[1].open_count, third.open_count) == (1, 2, 1)
        assert cell.open_connections == 4


async def test_an_unresponsive_address_frees_its_slot(postgres: Postgres, database: str) -> None:
    async with cell_of(postgres, database) as cell:
        nowhere = cell.pool_as(postgres, "no such database", ROLE)
        for _ in range(10):
            with pytest.raises(EngineError):
                await ask(nowhere, "select 1")
        assert (cell.running, cell.open_connections) == (0, 0)


async def test_a_deadline_too_short_to_connect_is_reported_as_a_timeout(postgres: Postgres, database: str) -> None:
    async with cell_of(postgres, database) as cell:
        with pytest.raises(LimitError, match="before the statement could run") as refused:
            async with lease_of(cell.pool, timeout_ms=0):
                pass
        assert refused.value.code == "statement_timeout"
        assert (cell.open_connections, cell.running) == (0, 0)


@pytest.mark.timing
async def test_opening_a_connection_ends_with_the_deadline(postgres: Postgres, database: str) -> None:
    with TemporaryDirectory(prefix="plainsql-test-") as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(Path(folder) / ".s.PGSQL.5432"))
        silent.listen()
        async with cell_of(postgres, database) as cell:
            pool = cell.pools.for_address(Address(f"host={folder} port=5432", database, ROLE), ORGANIZATION)
            began_s = time.monotonic()
            with pytest.raises(ServiceError):
                await ask(pool, "select 1", timeout_ms=200)
            assert time.monotonic() - began_s < 1.9


CHANGES = [
    ("select * from t where id = $1", "alter table t add column more int default 7", b'{"id":1,"a":"x","more":7}'),
    ("select * from t where id = $1", "alter table t drop column a", b'{"id":1}'),
    ("select a from t where id = $1", "alter table t alter a type int using 5", b'{"a":5}'),
    ("select * from t where id = $1", "alter table t rename a to b", b'{"id":1,"b":"x"}'),
    ("update t set id = id where id = $1 returning *", "alter table t drop column a", b'{"id":1}'),
    ("select a from t where id = $1", "alter table t alter id type bigint", b'{"a":"x"}'),
    ("select * from v where id = $1", "create or replace view v as select id, a, 2 as b from t",
     b'{"id":1,"a":"x","b":2}'),
]  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("uses", [1, 7])
async def test_a_schema_change_under_a_prepared_statement_is_handled_transparently(
    postgres: Postgres, database: str, case: tuple[str, str, bytes], uses: int
) -> None:
    """Seven uses, because PostgreSQL may keep a generic plan from the sixth on."""
    sql, change, expected = case
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, "create table t (id int, a text)")
        await ask(cell.pool, "create view v as select id, a from t")
        if "view" not in change:
            await ask(cell.pool, "drop view v")
        await ask(cell.pool, "insert into t values (1, 'x')")
        for _ in range(uses):
            await ask(cell.pool, sql, "1")
        with postgres.connect(ROLE, database) as past_the_pool:
            past_the_pool.execute(change)
        for _ in range(3):
            assert await ask(cell.pool, sql, "1") == [expected]
        assert cell.observed == []


async def test_a_recreated_type_is_looked_up_again(postgres: Postgres, database: str) -> None:
    sql = "select $1::mood as m"
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, "create type mood as enum ('sad')")
        assert await ask(cell.pool, sql, '"sad"') == [b'{"m":"sad"}']
        with postgres.connect(ROLE, database) as past_the_pool:
            past_the_pool.execute("drop type mood")
            past_the_pool.execute("create type mood as enum ('glad')")
        for _ in range(2):
            assert await ask(cell.pool, sql, '"glad"') == [b'{"m":"glad"}']


async def test_customer_code_that_discards_prepared_statements_is_harmless(postgres: Postgres, database: str) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, "create function forget(command text) returns int language plpgsql as"
                             " $$begin execute command; return 1; end$$")  # fmt: skip
        for command in ('"deallocate all"', '"discard plans"', '"prepare plainsql_1000 as select 1"'):
            for _ in range(2):
                assert await ask(cell.pool, "select $1::int as a", "5", without_code=False) == [b'{"a":5}']
                await ask(cell.pool, "select forget($1)", command, without_code=False)
                assert await ask(cell.pool, "select $1::int as a", "5", without_code=False) == [b'{"a":5}']


async def test_a_connection_keeps_a_bounded_number_of_prepared_statements(postgres: Postgres, database: str) -> None:
    held = "select count(*)::int as n from pg_prepared_statements"
    async with cell_of(postgres, database, per_pool=1) as cell:
        for number in range(130):
            assert await ask(cell.pool, f"select $1::int + {number} as a", "1") == [b'{"a":%d}' % (number + 1)]
        (answer,) = await ask(cell.pool, held)
        assert answer == b'{"n":100}'


async def test_a_statement_that_fails_leaves_its_connection_in_use(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, "select 1")
        before = backends(engine, database)
        for sql in ("select 1 / 0", "selec", "select $1::int", "select nowhere()", "set no_such_setting = 1"):
            with pytest.raises(ServiceError):
                await ask(cell.pool, sql)
            assert await ask(cell.pool, "select 1 as a") == [b'{"a":1}']
        assert backends(engine, database) == before
        assert not [each for each in cell.observed if isinstance(each, FailureObserved)]


async def test_an_abandoned_request_closes_its_connection_and_frees_its_slot(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell:
        for _ in range(3):
            asked = asyncio.create_task(ask(cell.pool, "select pg_sleep(600)"))
            await until(cell, running=1)
            await asyncio.sleep(0.02)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await until(cell, running=0)
        assert await ask(cell.pool, "select 1 as a") == [b'{"a":1}']
        wait_for_backends(engine, database, 1)
        assert cell.open_connections == 1


async def test_a_deadline_that_passes_during_a_type_lookup_prevents_the_statement(
    postgres: Postgres, database: str
) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, "create type mood as enum ('sad')")
        whose = await ask(cell.pool, "select pg_backend_pid() as p")

        async def look_up_slowly(sql: str, parameter: bytes, _: Deadline) -> list[list[str]]:
            # The statement is prepared, and nothing runs that could be ended: so it is found within this time.
            lease.interrupt(InterruptReason.DEADLINE)
            await asyncio.sleep(0.2)
            return await values_and_close(await cell.pool.open_apart(), sql, parameter)

        async with lease_of(cell.pool) as lease:
            statement = Statement("select pg_sleep(5), $1::mood", [b'"sad"'])
            stream = ResultStream(lease.connection, Catalog(look_up_slowly), statement)
            with pytest.raises(StatementError) as ended:
                await stream.start()
        assert (ended.value.code, ended.value.outcome) == ("query_canceled", Outcome.ROLLED_BACK)
        for _ in range(2):
            assert await ask(cell.pool, "select $1::mood as m", '"sad"') == [b'{"m":"sad"}']
        assert await ask(cell.pool, "select pg_backend_pid() as p") == whose, "it was settled, so it is used again"


async def test_waiting_for_an_exchange_includes_the_next_one(postgres: Postgres, database: str) -> None:
    async with cell_of(postgres, database) as cell, lease_of(cell.pool) as lease:
        connection = lease.connection
        connection.send_query(b"select 1")
        connection.sync()
        waiting = asyncio.create_task(connection.settled())
        await asyncio.sleep(0)
        await drain(connection)
        # In the same breath, as who prepares a statement and runs it.
        connection.send_query(b"select pg_sleep(0.1)")
        connection.sync()
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await drain(connection)
        await asyncio.wait_for(waiting, WAIT_LIMIT_S)


@contextmanager
def waiting_for_a_standby(engine: psycopg.Connection) -> Iterator[None]:
    """No commit is over within the block, once the server has read its settings."""
    engine.execute("set synchronous_commit = local")
    engine.execute("alter system set synchronous_standby_names = 'nobody'")
    engine.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        engine.execute("alter system reset synchronous_standby_names")
        engine.execute("select pg_reload_conf()")


async def test_a_commit_whose_wait_for_a_standby_is_cancelled_is_unknown(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    """On a cell of one host, too: there may be several servers behind it."""
    cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep' and datname = %s"
    async with cell_of(postgres, database) as cell:
        await ask(cell.pool, "create table t (n int)")
        with waiting_for_a_standby(engine):
            asked = asyncio.create_task(ask(cell.pool, "insert into t values (1)", timeout_ms=20_000))
            async with asyncio.timeout(WAIT_LIMIT_S):
                while not engine.execute(cancel, (database,)).rowcount:
                    if asked.done():
                        await asked
                        asked = asyncio.create_task(ask(cell.pool, "insert into t values (1)", timeout_ms=20_000))
                    await asyncio.sleep(0.01)
            with pytest.raises(EngineError) as lost:
                await asked
        assert lost.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("sql", ["select 1", "set work_mem = '1MB'", "select set_config('app.x', '1', false)"])
async def test_a_session_is_as_clean_after_a_request_as_before(postgres: Postgres, database: str, sql: str) -> None:
    seen = "select current_setting('work_mem') as w, current_setting('app.x', true) as x"
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, sql)
        (row,) = await ask(cell.pool, seen)
        assert row in (b'{"w":"4MB","x":null}', b'{"w":"4MB","x":""}')
        assert cell.open_connections == 1


@pytest.mark.parametrize(("part", "streams"), [("1", 4), ("1/2", 2), ("1/16", 1)])
async def test_the_processes_share_the_streams_of_an_organization(
    postgres: Postgres, database: str, part: str, streams: int
) -> None:
    async with cell_of(postgres, database, per_pool=16, per_cell=32, part=part) as cell, AsyncExitStack() as held:
        for _ in range(streams):
            await held.enter_async_context(cell.pool.stream_slot(8, Deadline.after_ms(1_000)))
        with pytest.raises(LimitError):
            async with cell.pool.stream_slot(8, Deadline.after_ms(50)):
                pass


async def test_a_lookup_of_types_ends_with_the_deadline_and_the_deadline_is_the_reason(
    postgres: Postgres, database: str
) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell:
        await ask(cell.pool, "create type mood as enum ('sad')")

        async def look_up_on_a_frozen_server(_: str, parameter: bytes, deadline: Deadline) -> list[list[str]]:
            return await cell.pool._look_up("select pg_sleep(60)::text, $1::text", parameter, deadline)

        async with lease_of(cell.pool, timeout_ms=200) as lease:
            catalog = Catalog(look_up_on_a_frozen_server)
            stream = ResultStream(lease.connection, catalog, Statement("select $1::mood", [b'"sad"']))
            with pytest.raises(EngineError):
                await stream.start()
            assert lease.ended_for is InterruptReason.DEADLINE
        # The only slot is free again.
        assert await ask(cell.pool, "select $1::mood as m", '"sad"') == [b'{"m":"sad"}']


def test_a_deadline_too_short_to_connect_in_is_reported_as_such() -> None:
    """uvloop rounds a timer to milliseconds, so it may fire before the deadline."""

    async def connect_to_who_does_not_answer() -> set[str]:
        codes = set()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            pools = Pools(PoolLimits(4, 8, 100), 5_000, lambda _: None)
            pool = pools.for_address(Address(f"host=127.0.0.1 port={port}", "none", "nobody"), "org")
            for tenths in range(1, 50):
                with pytest.raises(ServiceError) as refused:
                    async with pool.lease(100, Deadline(time.monotonic() + tenths / 10_000)):
                        pass
                codes.add(refused.value.code)
            await pools.close()
        return codes

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(connect_to_who_does_not_answer()) == {"statement_timeout"}


async def test_a_deadline_that_is_too_short_to_wait_is_no_overload(postgres: Postgres, database: str) -> None:
    async with cell_of(postgres, database, per_pool=1) as cell, cell.pool.lease(8, Deadline.after_ms(10_000)):
        assert "passed" in str(await asyncio.gather(cell.pool.acquire(Deadline.after_ms(2)), return_exceptions=True))
