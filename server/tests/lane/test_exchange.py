"""A statement or transaction on one connection to a real PostgreSQL: what the lane finishes, and what it leaves alone.

Whatever the lane leaves can be adopted: the ordinary path reads it to its end, and the connection is idle again.
"""

import asyncio
import json
import re

import pytest

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.sockets import wait_for_socket
from plainsql_server.engine.connection.session_state import SessionState
from server.tests.lane.exchange_bench import CONVERT, DONE, REQUEST_ID, UNSENT, WAITING, bench_on
from server.tests.postgres import Postgres

pytestmark = pytest.mark.compiled


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


async def test_a_string_for_a_bytea_parameter_is_not_sent(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        sql = "select $1::bytea as b, $2::text as t"
        await bench.prepare(sql, "AAEC", "x")
        assert bench.send(bench.plan(sql, "AAEC", "x")) is None
        assert await bench.run(bench.plan(sql, None, "AAEC")) == DONE
        assert bench.body()["rows"] == [{"b": None, "t": "AAEC"}]


async def test_a_statement_that_stores_rows_counts_them(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        for sql, affected_rows in (("create temp table made as select generate_series(1, 3) n", 3), ("table made", 0)):
            assert await bench.run(bench.plan(sql)) == DONE
            assert (bench.body()["command"], bench.body()["affected_rows"]) == ("SELECT", affected_rows)


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_notice_is_left_to_the_ordinary_path(postgres: Postgres, in_transaction: bool) -> None:
    async with bench_on(postgres) as bench:
        bench.connection.lane_exchange = bench.exchange
        loud, quiet = f"select 1 as {'n' * 70}", "select 2 as n"
        make = bench.transaction if in_transaction else bench.plan
        assert await bench.run_to_its_end(make(loud)) == CONVERT
        assert bench.exchange.reason_name == "notice"
        await bench.adopt()
        notices = bench.connection.take_notices()
        assert notices is not None
        assert [notice.code for notice in notices.shown] == ["42622"]
        # It does not concern the next one.
        assert await bench.run_to_its_end(make(quiet)) == DONE
        assert bench.connection.take_notices() is None


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


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_sequences_are_discarded_only_before_a_statement_that_could_read_them(
    postgres: Postgres, in_transaction: bool
) -> None:
    async with bench_on(postgres) as bench:
        plan = (bench.transaction if in_transaction else bench.plan)("select 1 as a")
        bench.connection.must_discard_sequences = True
        for state in (SessionState.SESSION, SessionState.EVERYTHING):
            assert bench.send(plan, state) is None
            assert bench.exchange.reason_name == "session"
        assert bench.send(plan, SessionState.SEQUENCES) == WAITING


async def test_a_connection_to_which_something_was_sent_is_not_used(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        with postgres.connect() as other:
            other.execute("select pg_terminate_backend(%s)", (bench.connection.backend_pid,))
        await asyncio.wait_for(wait_for_socket(bench.connection.socket, write=False), 30)
        assert bench.send(bench.plan("select 1 as a")) is None


async def test_a_connection_that_breaks_in_the_middle_is_left(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        plan = bench.plan("select pg_sleep(600)")
        assert bench.send(plan) == WAITING
        with postgres.connect() as other:
            other.execute("select pg_terminate_backend(%s)", (bench.connection.backend_pid,))
        await asyncio.wait_for(wait_for_socket(bench.connection.socket, write=False), 30)
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


@pytest.mark.parametrize(
    ("is_transaction", "may_have_committed"), [(False, True), (True, False)], ids=["sync refused", "statement refused"]
)
async def test_what_libpq_does_not_take_is_not_left_to_the_ordinary_path(
    postgres: Postgres, is_transaction: bool, may_have_committed: bool
) -> None:
    async with bench_on(postgres) as bench:
        # Then libpq takes one statement at a time, and no sync.
        bench.connection.pgconn.exit_pipeline_mode()
        plan = bench.transaction("select 1 as a", "select 2 as b") if is_transaction else bench.plan("select 1 as a")
        assert bench.send(plan) == UNSENT
        assert bench.exchange.may_have_committed == may_have_committed
        bench.connection.close()
