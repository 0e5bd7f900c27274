"""A connection to a real PostgreSQL, its exchange, and what tests run on it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from plainsql_server.core.clock import Deadline
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.core.sockets import wait_for_socket
from plainsql_server.data_plane.databases import Place
from plainsql_server.engine.connection.exchange import drain
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.execution.execution import ResultStream, Statement
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.pool import Lease, Pool
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from plainsql_server.extension_modules import COMPILED
from server.tests.postgres import SUPERUSER, Postgres

if COMPILED:
    from plainsql_server.lane.answer import Answer
    from plainsql_server.lane.caller import caller_of
    from plainsql_server.lane.engine.exchange import Exchange
    from plainsql_server.lane.plans.frame import Scalars
    from plainsql_server.lane.plans.plan import QueryPlan, QueryPlans
    from plainsql_server.lane.plans.transaction_plan import TransactionPlans
    from plainsql_server.lane.transaction_answer import LaneTransactionAnswer

WAITING, DONE, CONVERT, UNSENT = 0, 1, 2, 3
PRINCIPAL = Principal("org_1", "key_1", "dedicated", frozenset([Scope.WRITE]))
REQUEST_ID = b"req_abcdefgh"


class Bench:
    """A connection, its exchange, and what is run on it."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self.pool, self.lease, self.connection = pool, lease, lease.connection
        self.exchange = Exchange(lease.connection)
        self.caller = caller_of(PRINCIPAL, Place("db_1", without_code=True, address=pool.address), pool)
        self.scalars = Scalars()
        self.plans = QueryPlans(self.scalars)
        self.answer = Answer()
        self.transaction_plans, self.transaction_answer = TransactionPlans(self.scalars), LaneTransactionAnswer()

    def plan(self, sql: str, *params: Any, **options: Any) -> "QueryPlan":
        body = json.dumps({"sql": sql, "params": list(params), **options}, ensure_ascii=False).encode()
        plan = self.plans.of(body)
        assert plan is not None, body
        return plan

    def transaction(self, *statements: Any, **options: Any) -> "QueryPlan":
        """The plan of a transaction: its statements as texts, or with their parameters."""
        sent = [each if isinstance(each, str) else {"sql": each[0], "params": list(each[1:])} for each in statements]
        plan = self.transaction_plans.of(json.dumps({"statements": sent, **options}).encode())
        assert plan is not None, sent
        return plan

    async def prepare(self, sql: str, *params: Any) -> None:
        """Runs it on the ordinary path."""
        statement = Statement(sql, [json.dumps(param).encode() for param in params])
        stream = ResultStream(self.connection, self.pool.catalog, statement)
        await stream.start()
        while await stream.next_batch() is not None:
            pass

    def send(self, plan: "QueryPlan", state: SessionState = SessionState.NOTHING) -> int | None:
        self.sent = plan
        return self.exchange.try_to_send(plan, self.caller, state)

    async def run(self, plan: "QueryPlan") -> int:
        """Sends it, and reads once when something has arrived."""
        assert self.send(plan) == WAITING
        self.connection.unwatch()
        await wait_for_socket(self.connection.socket, write=False)
        return self.exchange.read_arrival()

    async def run_to_its_end(self, plan: "QueryPlan") -> int:
        """Sends it, and reads as long as it waits for more."""
        progress = await self.run(plan)
        while progress == WAITING:
            await asyncio.wait_for(wait_for_socket(self.connection.socket, write=False), 30)
            progress = self.exchange.read_arrival()
        return progress

    def body(self) -> dict[str, Any]:
        answer = self.transaction_answer if self.sent.is_transaction else self.answer
        written = answer.written(self.exchange, REQUEST_ID, [], b"")
        body: dict[str, Any] = json.loads(written.partition(b"\r\n\r\n")[2])
        return body

    async def adopt(self) -> None:
        """Has the ordinary path read the rest, and roll back what has failed. Raises the statement's error."""
        try:
            await self.read_rest()
        finally:
            if not self.connection.is_idle:
                await self.roll_back()

    async def read_rest(self) -> None:
        self.connection.adopt(self.exchange.results, self.exchange.chunks, has_read=True)
        await drain(self.connection)

    async def roll_back(self) -> None:
        """For a transaction that has failed: its COMMIT was skipped."""
        self.connection.send_query(b"rollback")
        self.connection.sync()
        await drain(self.connection)


@asynccontextmanager
async def bench_on(postgres: Postgres) -> AsyncIterator[Bench]:
    """A bench in a database of its own."""
    with postgres.swept():
        name = str(psycopg.conninfo.conninfo_to_dict(postgres.fresh_database())["dbname"])
        async with bench_at(postgres.conninfo, name) as bench:
            yield bench


@asynccontextmanager
async def bench_at(conninfo: str, database: str) -> AsyncIterator[Bench]:
    pools = Pools(PoolLimits(4, 8, 100), 2_000, lambda _: None)
    pool = pools.for_address(Address(conninfo, database, SUPERUSER), PRINCIPAL.organization_id)
    try:
        async with pool.lease(8, Deadline.after_ms(30_000)) as lease:
            yield Bench(pool, lease)
    finally:
        await pools.close()
