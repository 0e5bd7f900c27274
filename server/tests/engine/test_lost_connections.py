"""What a pool does when its connections are lost: which requests fail, and how many connections are opened instead."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.planner import MAX_PENDING
from plainsql_server.engine.pool.pool import Pool
from server.tests.engine.conftest import ROLE
from server.tests.engine.pooled_cell import (
    ORGANIZATION,
    ask,
    backends,
    cell_of,
    lease_of,
    run,
    until,
    wait_for_backends,
)
from server.tests.postgres import Postgres


async def test_a_connection_killed_while_idle_is_not_lent(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database) as cell:
        for _ in range(5):
            await ask(cell.pool, "select $1::int", "1")
            (pid,) = backends(engine, database)
            engine.execute("select pg_terminate_backend(%s, 5000)", (pid,))
            assert await ask(cell.pool, "select $1::int as a", "1") == [b'{"a":1}']
            assert backends(engine, database) != {pid}
        assert cell.open_connections == 1


async def test_connections_killed_while_idle_fail_no_request(
    postgres: Postgres, engine: psycopg.Connection, database: str
) -> None:
    async with cell_of(postgres, database) as cell:
        await asyncio.gather(*(ask(cell.pool, "select pg_sleep(0.05)") for _ in range(4)))
        await until(cell, running=0)
        for pid in backends(engine, database):
            engine.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        answers = await asyncio.gather(*(ask(cell.pool, "select 1 as a") for _ in range(4)))
        assert answers == [[b'{"a":1}']] * 4


@pytest.mark.parametrize("requests", [1, 12])
async def test_after_all_idle_connections_were_killed_there_are_as_many_slots_as_connections(
    postgres: Postgres, engine: psycopg.Connection, database: str, requests: int
) -> None:
    async with cell_of(postgres, database) as cell:
        async with AsyncExitStack() as leases:
            for _ in range(4):
                (await leases.enter_async_context(lease_of(cell.pool))).session_state = SessionState.NOTHING
        assert slots_of(cell.pool) == (4, 4, 4, 4)
        for pid in backends(engine, database):
            engine.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        async with lease_of(cell.pool) as lease:
            # It has found all of them broken, and has given back the slots of the others.
            assert slots_of(cell.pool) == (1, 1, 1, 1)
            assert await run(lease, cell.pool, "select 1 as a") == [b'{"a":1}']
            lease.session_state = SessionState.NOTHING
        answers = await asyncio.gather(*(ask(cell.pool, "select 1 as a") for _ in range(requests)))
        assert answers == [[b'{"a":1}']] * requests
        await until(cell, running=0)
        slots, *others = slots_of(cell.pool)
        assert others == [slots] * 3
        assert 1 <= slots <= min(requests, 4)
        wait_for_backends(engine, database, slots)


@pytest.mark.parametrize("lost", ["killed", "grown"])
async def test_no_more_than_a_few_connections_are_opened_at_once_instead_of_lost_ones(
    postgres: Postgres, engine: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Otherwise a customer that loses its connections all the time would keep others from their first."""
    async with cell_of(postgres, database, per_cell=24) as cell:
        # As many pools, which differ only in a label.
        addresses = [Address(postgres.conninfo, database, ROLE, cell_name=str(number)) for number in range(12)]
        pools = [cell.pools.for_address(address, ORGANIZATION) for address in addresses]
        under_way: list[int] = [0]
        leader, connect = pools[0].cell.leader, pools[0].cell.leader.connect

        async def counted(*arguments: Any) -> Any:
            under_way.append(under_way[-1] + 1)
            try:
                return await connect(*arguments)
            finally:
                under_way.append(under_way[-1] - 1)

        async def use(pool: Pool) -> None:
            async with lease_of(pool, timeout_ms=60_000) as lease:
                lease.session_state = SessionState.NOTHING
                await run(lease, pool, "select 1")
                # As after a row of some megabytes.
                lease.connection.is_grown = lost == "grown"

        for pool in pools:
            await ask(pool, "select 1")
        assert cell.open_connections == 12
        monkeypatch.setattr(leader, "connect", counted)
        if lost == "killed":
            for pid in backends(engine, database):
                engine.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        await asyncio.gather(*(use(pool) for pool in pools * 4))
        assert len(under_way) > 2 * 12
        assert max(under_way) <= MAX_PENDING
        await until(cell, running=0)
        planner = pools[0].cell.planner
        assert planner.granted == planner.open_count == cell.open_connections
        assert (planner.granted == 0) == (lost == "grown")


def slots_of(pool: Pool) -> tuple[int, int, int, int]:
    """The slots and the connections of a pool, and of all pools of its cell."""
    planner = pool.cell.planner
    return pool.queue.slots, pool.open_count, planner.granted, planner.open_count


@pytest.mark.parametrize("name", ["idle_session_timeout", "idle_in_transaction_session_timeout"])
async def test_a_customer_can_not_have_its_idle_connections_end_by_themselves(
    postgres: Postgres, engine: psycopg.Connection, database: str, name: str
) -> None:
    engine.execute(f"alter role {ROLE} set {name} = '1ms'")
    try:
        async with cell_of(postgres, database) as cell:
            assert await ask(cell.pool, "select current_setting($1) as a", name) == [b'{"a":"0"}']
    finally:
        engine.execute(f"alter role {ROLE} reset {name}")
