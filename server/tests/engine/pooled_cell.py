"""The pools of one process for tests, on a real PostgreSQL, and requests that use them.

async with cell_of(postgres, database) as cell:
    assert await ask(cell.pool, "select 1 as a") == [b'{"a":1}']
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import psycopg

from plainsql_server.core.clock import Deadline
from plainsql_server.core.observation import Observation
from plainsql_server.core.share import Share
from plainsql_server.core.sql_text import first_words
from plainsql_server.engine.connection.session_state import state_left_by
from plainsql_server.engine.execution.execution import ResultStream, Statement
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.pool import Lease, Pool
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from server.tests.engine.conftest import ROLE
from server.tests.postgres import Postgres
from server.tests.processes import wait_for

ORGANIZATION = "organization"
WAIT_LIMIT_S = 30


class Cell:
    """The pools of one process, and one of them to run statements on."""

    def __init__(self, postgres: Postgres, database: str, limits: PoolLimits, share: Share | None = None) -> None:
        self.observed: list[Observation] = []
        self.pools = Pools(limits, 2_000, self.observed.append, share)
        self.pool = self.pool_as(postgres, database, ROLE)

    def pool_as(self, postgres: Postgres, database: str, role: str) -> Pool:
        return self.pools.for_address(Address(postgres.conninfo, database, role), ORGANIZATION)

    @property
    def open_connections(self) -> int:
        return sum(load.open_connections for load in self.pools.loads())

    @property
    def running(self) -> int:
        return sum(load.running for load in self.pools.loads())


@asynccontextmanager
async def cell_of(
    postgres: Postgres, database: str, *, per_pool: int = 4, per_cell: int = 8, waiting: int = 100, part: str = "1"
) -> AsyncIterator[Cell]:
    cell = Cell(postgres, database, PoolLimits(per_pool, per_cell, waiting), Share.fixed(Fraction(part)))
    try:
        yield cell
    finally:
        await cell.pools.close()


def lease_of(pool: Pool, timeout_ms: int = 5_000) -> Lease:
    return pool.lease(100, Deadline.after_ms(timeout_ms))


async def run(lease: Lease, pool: Pool, sql: str, *params: str) -> list[Any]:
    stream = ResultStream(lease.connection, pool.catalog, Statement(sql, [param.encode() for param in params]))
    await stream.start()
    rows: list[bytes] = []
    while (batch := await stream.next_batch()) is not None:
        rows += batch
    return rows


async def ask(pool: Pool, sql: str, *params: str, without_code: bool = True, timeout_ms: int = 5_000) -> list[Any]:
    """One request's worth: a lease, its classification, the rows as JSON."""
    async with lease_of(pool, timeout_ms) as lease:
        lease.session_state = state_left_by(first_words(sql), sql, without_code=without_code)
        return await run(lease, pool, sql, *params)


async def until(cell: Cell, *, running: int) -> None:
    end_s = time.monotonic() + WAIT_LIMIT_S
    while cell.running != running:
        assert time.monotonic() < end_s, cell.running
        await asyncio.sleep(0.005)


def backends(engine: psycopg.Connection, database: str) -> set[int]:
    found = engine.execute("select pid from pg_stat_activity where datname = %s", (database,)).fetchall()
    return {pid for (pid,) in found}


def wait_for_backends(engine: psycopg.Connection, database: str, count: int) -> None:
    """A terminated backend takes a moment to exit."""
    wait_for(lambda: len(backends(engine, database)) == count, WAIT_LIMIT_S, lambda: backends(engine, database))
