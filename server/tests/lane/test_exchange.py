"""A statement or transaction on one connection to a real PostgreSQL: what the lane finishes, and what it leaves alone.

Whatever the lane leaves can be adopted: the ordinary path reads it to its end, and the connection is idle again.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.data_plane.databases import Place
from plainsql_server.engine.connection.connection import wait_for_socket
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
    from plainsql_server.lane.exchange import Exchange
    from plainsql_server.lane.frame import Scalars
    from plainsql_server.lane.plan import QueryPlan, QueryPlans
    from plainsql_server.lane.transaction_answer import LaneTransactionAnswer
    from plainsql_server.lane.transaction_plan import TransactionPlans

pytestmark = pytest.mark.compiled

WAITING, DONE, CONVERT = 0, 1, 2
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
            await asyncio.wait_for(wait_for_socket(self.connection.socket, write=False), 10)
            progress = self.exchange.read_arrival()
        return progress

    def body(self) -> dict[str, Any]:
        answer = self.transaction_answer if self.sent.is_transaction else self.answer
        written = answer.written(self.exchange, REQUEST_ID, [], b"")
        body: dict[str, Any] = json.loads(written.partition(b"\r\n\r\n")[2])
        return body

    async def adopt(self) -> None:
        """Has the ordinary path read the rest. Raises the statement's error."""
        self.connection.adopt(self.exchange.results, self.exchange.chunks, has_read=True)
        try:
            await drain(self.connection)
        finally:
            if not self.connection.is_idle:
                # COMMIT was skipped because of the error.
                self.connection.send_query(b"rollback")
                self.connection.sync()
                await drain(self.connection)


@asynccontextmanager
async def bench_on(postgres: Postgres) -> AsyncIterator[Bench]:
    with postgres.swept():
        name = str(psycopg.conninfo.conninfo_to_dict(postgres.fresh_database())["dbname"])
        pools = Pools(PoolLimits(4, 8, 100), 2_000, lambda _: None)
        pool = pools.for_address(Address(postgres.conninfo, name, SUPERUSER), PRINCIPAL.organization_id)
        try:
            async with pool.lease(8, Deadline.after_ms(30_000)) as lease:
                yield Bench(pool, lease)
        finally:
            await pools.close()


async def test_a_prepared_statement_is_sent_read_and_written(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        sql = "select $1::int as a, $2::text as b"
        assert bench.send(bench.plan(sql, 1, "x")) is None
        assert bench.exchange.reason_name == "statement"
        await bench.prepare(sql, 1, "x")
        assert await bench.run(bench.plan(sql, 7, "é ")) == DONE
        body = bench.body()
        assert body["rows"] == [{"a": 7, "b": "é "}]
        assert (body["columns"], body["types"]) == (["a", "b"], ["int4", "text"])
        assert (body["row_count"], body["command"], body["request_id"]) == (1, "SELECT", REQUEST_ID.decode())
        assert bench.connection.is_idle


async def test_a_statement_without_parameters_needs_no_preparation(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        for sql, command, rows in (
            ("create table t (n int)", "CREATE TABLE", 0),
            ("insert into t values (1), (2), (3)", "INSERT", 0),
            ("select n from t", "SELECT", 3),
            ("delete from t", "DELETE", 0),
        ):
            assert await bench.run(bench.plan(sql)) == DONE, sql
            body = bench.body()
            assert (body["command"], body["row_count"]) == (command, rows)
            assert body["affected_rows"] == (3 if command in ("INSERT", "DELETE") else 0)


@pytest.mark.parametrize("params", [(1,), (1, 2, 3)])
async def test_a_wrong_number_of_parameters_is_not_sent(postgres: Postgres, params: tuple[int, ...]) -> None:
    async with bench_on(postgres) as bench:
        sql = "select $1::int + $2::int as n"
        await bench.prepare(sql, 1, 2)
        assert bench.send(bench.plan(sql, *params)) is None
        assert bench.exchange.reason_name == "statement"


@pytest.mark.parametrize("type_name", ["json", "jsonb"])
async def test_a_string_for_a_json_parameter_is_not_sent(postgres: Postgres, type_name: str) -> None:
    async with bench_on(postgres) as bench:
        sql = f"select $1::{type_name} as j"
        await bench.prepare(sql, "x")
        assert bench.send(bench.plan(sql, "x")) is None
        assert await bench.run(bench.plan(sql, 5)) == DONE
        assert bench.body()["rows"] == [{"j": 5}]


@pytest.mark.parametrize(
    ("rows", "max_rows", "progress"),
    [(0, None, DONE), (1, 1, DONE), (32, None, DONE), (33, None, CONVERT), (2, 1, CONVERT), (5, 0, CONVERT)],
)
async def test_one_chunk_of_rows_is_the_most(
    postgres: Postgres, rows: int, max_rows: int | None, progress: int
) -> None:
    async with bench_on(postgres) as bench:
        options = {} if max_rows is None else {"max_rows": max_rows}
        plan = bench.plan(f"select generate_series(1, {rows}) as g", **options)
        assert await bench.run(plan) == progress
        if progress == DONE:
            assert [row["g"] for row in bench.body()["rows"]] == list(range(1, rows + 1))
        else:
            assert bench.exchange.reason_name == "large"
            await bench.adopt()
        assert bench.connection.is_idle


async def test_a_result_that_does_not_arrive_in_one_read_is_left(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        plan = bench.plan("select repeat('x', 20000000) as x")
        assert await bench.run(plan) == CONVERT
        assert bench.exchange.reason_name == "large"
        await bench.adopt()
        assert bench.connection.is_idle


@pytest.mark.parametrize("sql", ["select 1 / 0", "select nothing", ";", "select 1; select 2"])
async def test_an_error_is_left_with_all_results(postgres: Postgres, sql: str) -> None:
    async with bench_on(postgres) as bench:
        plan = bench.plan(sql)
        assert await bench.run(plan) == CONVERT
        assert bench.exchange.reason_name == "error"
        if sql == ";":
            await bench.adopt()
        else:
            with pytest.raises(ServiceError):
                await bench.adopt()
        assert bench.connection.is_idle


async def test_an_error_at_the_commit_is_left(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        await bench.prepare("create table t (n int unique deferrable initially deferred)")
        plan = bench.plan("insert into t values (1), (1)")
        assert await bench.run(plan) == CONVERT
        with pytest.raises(ServiceError, match="duplicate key"):
            await bench.adopt()
        assert bench.connection.is_idle


async def test_a_type_that_must_be_looked_up_is_left(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        await bench.prepare("create type mood as enum ('good', 'bad')")
        plan = bench.plan("select 'bad'::mood as m")
        assert await bench.run(plan) == CONVERT
        assert bench.exchange.reason_name == "type"
        await bench.adopt()
        # The ordinary path looks it up.
        await bench.prepare("select 'good'::mood as m")
        assert await bench.run(plan) == DONE
        assert bench.body()["rows"] == [{"m": "bad"}]


async def test_sequences_are_discarded_only_before_a_statement_that_could_read_them(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        plan = bench.plan("select 1 as a")
        bench.connection.must_discard_sequences = True
        for state in (SessionState.SESSION, SessionState.EVERYTHING):
            assert bench.send(plan, state) is None
            assert bench.exchange.reason_name == "session"
        assert bench.send(plan, SessionState.SEQUENCES) == WAITING


async def test_a_connection_to_which_something_was_sent_is_not_used(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        with postgres.connect() as other:
            other.execute("select pg_terminate_backend(%s)", (bench.connection.backend_pid,))
        await asyncio.wait_for(wait_for_socket(bench.connection.socket, write=False), 10)
        assert bench.send(bench.plan("select 1 as a")) is None


async def test_a_connection_that_breaks_in_the_middle_is_left(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        plan = bench.plan("select pg_sleep(600)")
        assert bench.send(plan) == WAITING
        with postgres.connect() as other:
            other.execute("select pg_terminate_backend(%s)", (bench.connection.backend_pid,))
        await asyncio.wait_for(wait_for_socket(bench.connection.socket, write=False), 10)
        assert bench.exchange.read_arrival() == CONVERT
        assert bench.exchange.reason_name == "error"
        with pytest.raises(ServiceError):
            await bench.adopt()


async def test_the_head_of_an_answer_may_be_longer_than_the_room_before_it(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        assert await bench.run(bench.plan("select 1 as a")) == DONE
        for size in (0, 100, 2_000, 5_000):
            more = b"x-more: %b\r\n" % (b"m" * size)
            head, _, body = bench.answer.written(bench.exchange, REQUEST_ID, [(b"server", b"s")], more).partition(
                b"\r\n\r\n"
            )
            assert head.startswith(b"HTTP/1.1 200 OK\r\nserver: s\r\ncontent-type: application/json\r\n")
            assert head.endswith(more[:-2])
            length = re.search(rb"content-length: (\d+)\r\n", head)
            assert length is not None
            assert int(length[1]) == len(body)
            assert json.loads(body)["rows"] == [{"a": 1}]


async def test_a_transaction_is_sent_read_and_written(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        await bench.prepare("create table t (n int, s text)")
        insert, select = "insert into t values ($1, $2)", "select n, s from t where n >= $1"
        plan = bench.transaction((insert, 1, "a"), (insert, 2, "b"), "select 3 as three", (select, 1))
        assert bench.send(plan) is None
        assert bench.exchange.reason_name == "statement"
        await bench.prepare(insert, 0, "z")
        await bench.prepare(select, 0)
        plan = bench.transaction((insert, 1, "a"), (insert, 2, "b"), "select 3 as three", (select, 1))
        assert await bench.run_to_its_end(plan) == DONE
        results = bench.body()["results"]
        assert [each["command"] for each in results] == ["INSERT", "INSERT", "SELECT", "SELECT"]
        assert [each["affected_rows"] for each in results] == [1, 1, 0, 0]
        assert [each["rows"] for each in results] == [
            [], [], [{"three": 3}], [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}],
        ]  # fmt: skip
        assert bench.connection.is_idle


async def test_an_error_in_a_transaction_is_left_and_undoes_all(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        await bench.prepare("create table t (n int)")
        plan = bench.transaction("insert into t values (1)", "select 1 / 0", "insert into t values (2)")
        assert await bench.run_to_its_end(plan) == CONVERT
        assert bench.exchange.reason_name == "error"
        with pytest.raises(ServiceError):
            await bench.adopt()
        assert bench.connection.is_idle
        assert await bench.run(bench.plan("select n from t")) == DONE
        assert bench.body()["rows"] == []


async def test_a_transaction_and_a_read_only_statement_that_need_guards_are_not_sent(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        for plan in (bench.transaction("select 1 as a"), bench.plan("select 1 as a", read_only=True)):
            for state in (SessionState.SESSION, SessionState.EVERYTHING):
                assert bench.send(plan, state) is None
                assert bench.exchange.reason_name == "options"
            assert await bench.run_to_its_end(plan) == DONE
            assert bench.connection.is_idle


async def test_a_read_only_statement_cannot_write(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        await bench.prepare("create table t (n int)")
        for plan in (
            bench.plan("insert into t values (1)", read_only=True),
            bench.transaction("insert into t values (1)", read_only=True),
        ):
            assert await bench.run_to_its_end(plan) == CONVERT
            assert bench.exchange.reason_name == "error"
            with pytest.raises(ServiceError, match="read-only"):
                await bench.adopt()
            assert bench.connection.is_idle


async def test_sequences_are_discarded_before_a_transaction_by_the_same_rule(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        plan = bench.transaction("select 1 as a")
        bench.connection.must_discard_sequences = True
        for state in (SessionState.SESSION, SessionState.EVERYTHING):
            assert bench.send(plan, state) is None
            assert bench.exchange.reason_name == "session"
        assert bench.send(plan, SessionState.SEQUENCES) == WAITING


async def test_a_transaction_with_a_large_result_is_left(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        for plan in (
            bench.transaction("select generate_series(1, 33) as g", "select 1 as a"),
            bench.transaction("select 1 as a", "select repeat('x', 20000000) as x"),
            bench.transaction("select 1 as a, 2 as b", "values (1), (2)", max_rows=1),
        ):
            assert await bench.run_to_its_end(plan) == CONVERT
            assert bench.exchange.reason_name == "large"
            await bench.adopt()
            assert bench.connection.is_idle


async def test_statements_and_transactions_alternate_on_a_connection(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        first, second = "select $1::int as a", "select $1::text as b"
        await bench.prepare(first, 1)
        await bench.prepare(second, "x")
        for number in range(3):
            assert await bench.run(bench.plan(second, "y")) == DONE
            assert bench.body()["rows"] == [{"b": "y"}]
            assert await bench.run_to_its_end(bench.transaction((first, number), (second, "z"), (first, 7))) == DONE
            rows = [each["rows"] for each in bench.body()["results"]]
            assert rows == [[{"a": number}], [{"b": "z"}], [{"a": 7}]]
            assert await bench.run_to_its_end(bench.plan(first, number, read_only=True)) == DONE
