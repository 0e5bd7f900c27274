"""POST /v1/transaction: what it takes, what it answers, its limits and its retries."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any

import psycopg
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.transactions import Sent, fresh_table, last_row, numbers, post, run, with_params
from server.tests.load import STALL_S, new_tag
from server.tests.processes import wait_for
from server.tests.service import Service

RESULT_FIELDS = {"columns", "types", "rows", "row_count", "truncated", "affected_rows", "command", "timings"}
ANSWER_FIELDS = {"success", "results", "affected_rows", "transaction", "timings", "request_id"}


def test_strings_and_objects_run_in_order_and_answer_in_order(service: Service) -> None:
    table = fresh_table(service)
    answer = run(
        service,
        f"insert into {table} values (1)",
        {"sql": f"insert into {table} values (2), (3)"},
        with_params(f"insert into {table} values ($1) returning n", 4),
        f"select n from {table} order by n",
        with_params(f"delete from {table} where n > $1", 2),
        f"select count(*)::int as left from {table}",
    )
    results = answer["results"]
    assert [result["command"] for result in results] == ["INSERT", "INSERT", "INSERT", "SELECT", "DELETE", "SELECT"]
    assert [result["affected_rows"] for result in results] == [1, 2, 1, 0, 2, 0]
    assert [result["row_count"] for result in results] == [0, 0, 1, 4, 0, 1]
    assert results[3]["rows"] == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert results[5]["rows"] == [{"left": 2}]
    assert answer["affected_rows"] == 6
    assert numbers(service, table) == [1, 2]


def test_an_answer_has_the_fields_of_the_contract_and_every_statement_its_time(service: Service) -> None:
    response = post(service, "select 1 as a", with_params("select $1::text as b", "x"))
    answer = response.json()
    assert set(answer) == ANSWER_FIELDS
    assert answer["request_id"] == response.headers["x-request-id"]
    assert answer["transaction"].pop("id").startswith("txn_")
    assert answer["transaction"] == {"isolation": "serializable", "attempts": 1, "participants": 1}
    assert set(answer["timings"]) == {"total_us", "exec_us", "commit_us"}
    for result in answer["results"]:
        assert set(result) == RESULT_FIELDS
        assert set(result["timings"]) == {"exec_us"}
        assert type(result["timings"]["exec_us"]) is int
    assert answer["timings"]["total_us"] >= answer["timings"]["commit_us"] >= 0
    assert "engine" in response.headers["server-timing"]


VALUES: list[tuple[str, Any]] = [
    ("bool", True), ("int2", -3), ("int8", 9223372036854775807), ("float8", "NaN"), ("text", "ä\t\"'\\"), ("text", ""),
    ("numeric", "123456789012345678901234567890.123456789"), ("date", "2026-11-14"), ("interval", "P1Y2DT3H4M5.6S"),
    ("timestamptz", "2026-11-14T22:15:31.244383Z"), ("uuid", "00000000-0000-0000-0000-000000000001"),
    ("jsonb", {"a": [1, None, {"b": "ü"}]}), ("json", [1, 2]), ("int4[]", [[1, 2], [3, None]]), ("text[]", ["a,b", ""]),
    ("bytea", "\\x00ff"), ("inet", "10.0.0.1"), ("int4", None), ("jsonb", None),
]  # fmt: skip


def test_parameters_and_values_are_those_of_a_single_query(service: Service) -> None:
    statements = [(f"select $1::{type_} as v", value) for type_, value in VALUES]
    alone = [service.query(sql, value) for sql, value in statements]
    for _ in range(2):
        together = run(service, *(with_params(sql, value) for sql, value in statements))["results"]
        assert [result["rows"] for result in together] == [answer["rows"] for answer in alone]
        assert [result["types"] for result in together] == [answer["types"] for answer in alone]


def test_rows_as_arrays_and_big_numbers_as_strings(service: Service) -> None:
    sql = "select 1 as a, 2::int8 as a, 3.50::numeric as b"
    assert last_row(service, sql) == {"a": 1, "a_1": 2, "b": "3.50"}
    result = run(service, sql, row_format="array", big_numbers="string")["results"][0]
    assert (result["columns"], result["rows"]) == (["a", "a", "b"], [[1, "2", "3.50"]])


@pytest.mark.parametrize("statement", ["insert into {} values (1)", "create table gone ()", "select nextval('{}_s')"])
def test_a_read_only_transaction_refuses_to_write(service: Service, statement: str) -> None:
    table = fresh_table(service)
    service.query(f"create sequence {table}_s")
    read, write = f"select count(*) from {table}", statement.format(table)
    assert run(service, read, "show transaction_read_only", read_only=True)["results"][1]["rows"] == [
        {"transaction_read_only": "on"}
    ]
    error = error_of(post(service, read, write, read, read_only=True), 200, "read_only_sql_transaction")
    assert (error["statement_index"], error["outcome"]) == (1, "rolled_back")
    assert numbers(service, table) == []


def test_a_read_key_reads_and_does_not_write(service: Service) -> None:
    table = fresh_table(service)
    service.query(f"insert into {table} values (5)")
    key = tenants.read_key(service)
    assert post(service, f"select n from {table}", key=key).json()["results"][0]["rows"] == [{"n": 5}]
    refused = post(service, f"select n from {table}", f"insert into {table} values (6)", key=key).json()["error"]
    assert refused["sqlstate"] in ("25006", "42501")
    assert refused["statement_index"] == 1
    for change in ("set local transaction_read_only = off", "select set_config('transaction_read_only', 'off', false)"):
        assert not post(service, change, f"insert into {table} values (6)", key=key).json()["success"]
    assert numbers(service, table) == [5]


@pytest.mark.parametrize(
    "slow", ["select pg_sleep(600)", "do $$ begin loop begin perform pg_sleep(0.01); exception when query_canceled then"
             " null; end; end loop; end $$"], ids=["sleep", "trap"],
)  # fmt: skip
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_deadline_ends_the_whole_transaction(service: Service, slow: str, position: int) -> None:
    table, tag = fresh_table(service), new_tag()
    service.query("do $$ begin end $$")
    statements: list[Sent] = [f"insert into {table} values (1)", with_params(f"insert into {table} values ($1)", 2)]
    statements.insert(position, f"/* {tag} */ {slow}")
    began_s = time.monotonic()
    error = error_of(post(service, *statements, timeout_ms=400), 200, "transaction_deadline_exceeded")
    assert time.monotonic() - began_s < 1.6 + STALL_S
    assert (error["outcome"], error["retryable"]) == ("rolled_back", False)
    assert "400 ms" in error["message"]
    assert numbers(service, table) == []
    with service.engine() as engine:
        assert running_with(engine, tag) == 0


def running_with(engine: "psycopg.Connection[tuple[Any, ...]]", tag: str) -> int:
    row = engine.execute(
        "select count(*) from pg_stat_activity where state <> 'idle' and pid <> pg_backend_pid()"
        " and query like '%%' || %s || '%%'",
        (tag,),
    ).fetchone()
    assert row is not None
    return int(row[0])


class Interference:
    """Other sessions that change a row while a transaction of the service's is on its way.

    Each attempt of the transaction waits for a lock. A session that holds it changes the row and lets it go; the next
    session has asked for it by then, right behind the attempt that fails now and before the one that follows.
    """

    def __init__(self, service: Service, times: int) -> None:
        self.table = fresh_table(service, "id int primary key, n int")
        service.query(f"insert into {self.table} values (1, 10), (2, 20)")
        self._service = service
        self._times = times
        self._lock = f"lock table {fresh_table(service)} in exclusive mode"

    def statements(self) -> list[str]:
        return [
            f"select n from {self.table} where id = 1",
            self._lock,
            f"update {self.table} set n = n + 1 where id = 1 returning n",
        ]

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """For the length of the block, whose end waits for the last change."""
        with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
            sessions = [stack.enter_context(self._service.engine()) for _ in range(self._times)]
            self._take_lock(sessions[0])
            changing = thread.submit(self._change, sessions)
            yield
            changing.result()

    def _change(self, sessions: Sequence["psycopg.Connection[tuple[Any, ...]]"]) -> None:
        with self._service.engine() as watcher, ThreadPoolExecutor(1) as thread:
            taking: Future[None] | None = None
            for session, later in zip_longest(sessions, sessions[1:]):
                if taking is not None:
                    # Otherwise the one who waits could be this session, while the attempt has yet to begin.
                    taking.result()
                self._wait_for_waiters(watcher, 1)
                if later is not None:
                    taking = thread.submit(self._take_lock, later)
                    self._wait_for_waiters(watcher, 2)
                session.execute(f"update {self.table} set n = n + 100 where id = 1")
                session.commit()

    def _take_lock(self, session: "psycopg.Connection[tuple[Any, ...]]") -> None:
        session.autocommit = False
        session.execute(self._lock.encode())

    def _wait_for_waiters(self, watcher: "psycopg.Connection[tuple[Any, ...]]", count: int) -> None:
        waiting = "select from pg_stat_activity where query = %s and wait_event_type = 'Lock'"
        wait_for(lambda: watcher.execute(waiting, (self._lock,)).rowcount == count, 60, lambda: f"not {count} who wait")


def test_a_conflict_is_retried_with_the_correct_result(service: Service) -> None:
    interference = Interference(service, times=2)
    with interference.going_on():
        answer = run(service, *interference.statements())
    assert answer["transaction"]["attempts"] == 3
    assert [result["rows"] for result in (answer["results"][0], answer["results"][2])] == [[{"n": 210}], [{"n": 211}]]
    assert service.value(f"select n from {interference.table} where id = 1") == 211


def test_a_conflict_is_reported_if_retries_are_disabled(service: Service) -> None:
    interference = Interference(service, times=1)
    with interference.going_on():
        error = error_of(post(service, *interference.statements(), max_retries=0), 200, "serialization_failure")
    assert (error["sqlstate"], error["retryable"], error["outcome"]) == ("40001", True, "rolled_back")
    assert error["statement_index"] == 2
    assert service.value(f"select n from {interference.table} where id = 1") == 110


def test_a_write_skew_detected_at_commit_is_retried(service: Service) -> None:
    """Two doctors on call, each of whom goes home if another one stays: one stays, whatever happens."""
    table = fresh_table(service, "id int primary key, on_call bool")
    attempts = []
    for _ in range(4):
        service.query(f"truncate {table}")
        service.query(f"insert into {table} values (1, true), (2, true)")

        def go_home(doctor: int) -> int:
            answer = run(
                service, f"select count(*) from {table} where on_call", "select pg_sleep(0.05)",
                f"update {table} set on_call = false where id = {doctor}"
                f" and (select count(*) from {table} where on_call) > 1",
            )  # fmt: skip
            return int(answer["transaction"]["attempts"])

        with ThreadPoolExecutor(2) as doctors:
            attempts += list(doctors.map(go_home, (1, 2)))
        assert service.value(f"select count(*) from {table} where on_call") == 1
    assert max(attempts) > 1, "no conflict was met, so nothing is shown"


def test_a_deadlock_is_retried(service: Service) -> None:
    table = fresh_table(service, "id int primary key, n int")
    service.query(f"insert into {table} values (1, 0), (2, 0)")
    update = f"update {table} set n = n + 1 where id = "
    with service.engine() as other, ThreadPoolExecutor(1) as client:
        other.autocommit = False
        # The one whose patience ends first is the one that the engine ends: never us.
        other.execute("set deadlock_timeout = '1h'")
        other.execute(f"{update} 2")
        tag = new_tag()
        waiting = client.submit(run, service, f"{update} 1", f"/* {tag} */ {update} 2")
        with service.engine() as engine:
            while not running_with(engine, tag):
                time.sleep(0.005)
        # It waits for us, and now we for it.
        other.execute(f"{update} 1")
        other.commit()
        assert waiting.result()["transaction"]["attempts"] >= 2
    assert service.query(f"select n from {table}")["rows"] == [{"n": 2}, {"n": 2}]


def test_a_truncated_result_is_exact(service: Service) -> None:
    for wanted, rows, truncated in ((5, 5, False), (4, 4, True), (0, 0, True), (6, 5, False)):
        result = run(service, "select 1", "select generate_series(1, 5) as n", max_rows=wanted)["results"][1]
        assert (len(result["rows"]), result["row_count"], result["truncated"]) == (rows, rows, truncated)
    hundred = run(service, "select generate_series(1, 1000) as n", max_rows=100)["results"][0]
    assert [row["n"] for row in hundred["rows"]] == list(range(1, 101))
    assert hundred["truncated"]


def test_a_truncated_statement_that_writes_writes_everything(service: Service) -> None:
    table = fresh_table(service)
    sql = f"insert into {table} select generate_series(1, 100) returning n"
    result = run(service, sql, f"select count(*) as c from {table}", max_rows=3)["results"]
    assert (result[0]["row_count"], result[0]["affected_rows"], result[1]["rows"]) == (3, 100, [{"c": 100}])


def test_a_thousand_statements_are_one_transaction(service: Service) -> None:
    table = fresh_table(service)
    inserts = [f"insert into {table} values ({n}) returning n, repeat('x', 1000)" for n in range(1000)]
    answer = run(service, *inserts)
    assert [result["rows"][0]["n"] for result in answer["results"]] == list(range(1000))
    assert answer["affected_rows"] == 1000
    assert service.value(f"select count(distinct xmin::text) from {table}") == 1


def test_more_statements_with_parameters_than_a_connection_keeps_prepared(service: Service) -> None:
    table = fresh_table(service)
    inserts = [with_params(f"insert into {table} /* {n} */ values ($1) returning n", n) for n in range(130)]
    for number in range(2):
        service.query(f"truncate {table}")
        answer = run(service, *inserts, inserts[0] | {"params": [1000 + number]})
        assert [result["rows"][0]["n"] for result in answer["results"]] == [*range(130), 1000 + number]


def test_a_tier_limits_the_number_and_the_length_of_statements(service: Service) -> None:
    key = tenants.free_key(service)
    error = error_of(post(service, *["select 1"] * 101, key=key), 400, "too_many_statements")
    assert error["outcome"] == "not_executed"
    for word in ("100", "101", "free"):
        assert word in error["message"]
    assert post(service, *["select 1"] * 100, key=key).json()["success"]
    long = f"select 1 /* {'x' * 1024 * 1024} */"
    assert error_of(post(service, "select 1", long, key=key), 413, "statement_too_large")["statement_index"] == 1
    large = [f"select {n} /* {'x' * 1000 * 1000} */" for n in range(5)]
    error_of(post(service, *large, key=key), 413, "request_too_large")
    error_of(post(service, key=key), 400, "empty_transaction")


def test_a_tier_limits_rows_and_bytes_of_all_results_together(service: Service) -> None:
    key = tenants.free_key(service)
    rows = post(service, "select generate_series(1, 10000)", "select generate_series(1, 10001)", key=key).json()
    assert [(each["row_count"], each["truncated"]) for each in rows["results"]] == [(10_000, False), (10_000, True)]
    six_mib = "select repeat('x', 1024 * 1024) from generate_series(1, 6)"
    assert post(service, six_mib, key=key).json()["success"]
    post(service, "create table if not exists kept (n int)", "truncate kept", key=key)
    for ending in ("select 1", "select pg_sleep(0.3)"):
        response = post(service, "insert into kept values (1)", six_mib, six_mib, ending, key=key)
        error = error_of(response, 200, "result_too_large")
        assert "10485760" in error["message"]
        there = post(service, "select count(*) as c from kept", "truncate kept", key=key).json()["results"][0]["rows"]
        assert {"committed": 1, "rolled_back": 0}[error["outcome"]] == there[0]["c"]


MALFORMED: list[Any] = [
    {}, {"statements": "select 1"}, {"statements": [1]}, {"statements": [None]}, {"statements": [{}]}, [],
    {"statements": ["select 1"], "isolation": "read committed"}, {"statements": ["select 1"], "max_retries": -1},
    {"statements": ["select 1"], "max_retries": 1.5}, {"statements": ["select 1"], "max_retries": 10_000_000},
    {"statements": ["select 1"], "timeout_ms": 0}, {"statements": ["select 1"], "read_only": "yes"},
    {"statements": ["select 1"], "row_format": "rows"}, {"statements": ["select 1"], "params": [1]},
    {"statements": [{"sql": "select 1", "parameters": []}]}, {"statements": [{"sql": "select 1", "read_only": True}]},
    {"statements": [{"sql": "select 1", "params": {"a": 1}}]}, {"statements": [{"sql": ["select 1"]}]},
    {"statements": [{"sql": "select 1", "expect": {}}]}, {"statements": [{"sql": "select 1", "expect": 1}]},
    {"statements": [{"sql": "select 1", "expect": {"row_count": 1, "affected_rows": 0}}]},
    {"statements": [{"sql": "select 1", "expect": {"row_count": -1}}]},
    {"statements": [{"sql": "select 1", "expect": {"rows": 1}}]},
    {"statements": [{"sql": "select 1", "expect": {"row_count": "1"}}]},
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED, ids=str)
def test_fields_outside_the_contract_are_rejected(service: Service, body: Any) -> None:
    response = service.call("POST", "/v1/transaction", json=body)
    assert error_of(response, 400, "malformed_request")["outcome"] == "not_executed"


def test_statements_may_all_name_the_same_database(service: Service) -> None:
    other = tenants.second_database(service)
    where = "select current_database()::text as d"
    here = last_row(service, where)["d"]
    there = last_row(service, where, database=other)["d"]
    assert here != there
    named = with_params(where, database=other)
    assert [each["rows"][0]["d"] for each in run(service, named, named)["results"]] == [there, there]
    assert last_row(service, named, where, database=other)["d"] == there
    by_header = post(service, where, headers={"X-Database": other}).json()
    assert by_header["results"][0]["rows"] == [{"d": there}]
    error_of(post(service, with_params(where, database="nowhere")), 404, "database_not_found")
    error_of(post(service, where, database="theirs"), 404, "database_not_found")


def test_the_route_wants_a_key_json_and_post(service: Service) -> None:
    error_of(
        service.call("POST", "/v1/transaction", key=None, json={"statements": ["select 1"]}), 401, "unauthenticated"
    )
    error_of(service.call("GET", "/v1/transaction"), 405, "method_not_allowed")
    text = service.call("POST", "/v1/transaction", content=b"select 1", headers={"Content-Type": "text/plain"})
    error_of(text, 415, "unsupported_content_type")
    error_of(service.call("POST", "/v1/transaction", content=b"{", headers={"Content-Type": "application/json"}),
             400, "malformed_request")  # fmt: skip


def test_each_statement_reports_its_own_time(service: Service) -> None:
    table = fresh_table(service)
    results = run(service, f"insert into {table} values (1)", "select pg_sleep(0.6)", "select 1")["results"]
    first, slow, last = (result["timings"]["exec_us"] for result in results)
    assert slow > 400_000
    assert first < 200_000
    assert last < 200_000
