"""Transactions over several databases, over HTTPS, with two real cells: all of it happens, or nothing does."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.transactions import fresh_table, numbers, post, ref, run, with_params
from server.tests.load import STALL_S
from server.tests.postgres import Postgres, running_postgres
from server.tests.processes import wait_for
from server.tests.service import Service, running_service

# What a process that died left in doubt is finished by then; docs/reference/http.md says so.
BOUND_S = 10 + 4 * STALL_S


@dataclass(frozen=True)
class Two:
    """A service with two cells: `main` and `near` are on its own, `far` is on the other."""

    service: Service
    other: Postgres

    def prepared(self) -> list[str]:
        """What is prepared on either cell."""
        gids: list[str] = []
        for cell in (self.service.engine(), self.other.connect()):
            with cell:
                gids += [gid for (gid,) in cell.execute("select gid from pg_prepared_xacts")]
        return gids

    def records(self, condition: str = "freed_at is null") -> int:
        with self.service.engine("plainsql_directory") as directory:
            row = directory.execute(f"select count(*) from spanning_transactions where {condition}".encode()).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with running_postgres() as other, running_service(workers=2) as service:
        service.customers.add_cell("second", other.conninfo)
        for name in ("far", "near"):
            service.customers.add_database(name)
        yield Two(service, other)


@pytest.fixture
def table(two: Two) -> Iterator[str]:
    """A table of one name in all three databases; nothing is left behind after the test."""
    name = fresh_table(two.service)
    for database in ("far", "near"):
        two.service.query(f"create table {name} (n int primary key)", database=database)
    yield name
    wait_for(lambda: not two.prepared() and not two.records(), BOUND_S, lambda: f"left behind: {two.prepared()}")


def at(database: str, sql: str, *params: Any, **fields: Any) -> dict[str, Any]:
    return with_params(sql, *params, database=database, **fields)


def everywhere(two: Two, table: str) -> dict[str, list[int]]:
    return {name: numbers(two.service, table, database=name) for name in ("main", "far", "near")}


def test_the_databases_are_where_the_tests_want_them(two: Two) -> None:
    with two.other.connect() as cell:
        assert len(cell.execute("select from pg_database where datname ~ '^d_'").fetchall()) == 1


def test_a_spanning_transaction_commits_in_all_databases_or_in_none(two: Two, table: str) -> None:
    answer = run(
        two.service,
        f"insert into {table} values (1)",
        at("far", f"insert into {table} values ($1) returning n", 2),
        at("near", f"insert into {table} values (3), (4)"),
        f"insert into {table} values (5)",
    )
    assert answer["transaction"]["participants"] == 3
    # Operators find it by the id in the caller's answer.
    assert two.records(f"id = '{answer['transaction']['id']}' and state = 'committed'") == 1
    assert answer["affected_rows"] == 5
    assert [result["affected_rows"] for result in answer["results"]] == [1, 1, 2, 1]
    assert answer["results"][1]["rows"] == [{"n": 2}]
    assert everywhere(two, table) == {"main": [1, 5], "far": [2], "near": [3, 4]}


@pytest.mark.parametrize("last", ["main", "far", "near"])
def test_a_statement_that_fails_undoes_everything_everywhere(two: Two, table: str, last: str) -> None:
    two.service.query(f"insert into {table} values (9)", database=last)
    before = everywhere(two, table)
    statements = [at(name, f"insert into {table} values (1)") for name in ("main", "far", "near")]
    error = error_of(
        post(two.service, *statements, at(last, f"insert into {table} values (9)")), 200, "unique_violation"
    )
    assert error["statement_index"] == 3
    assert error["outcome"] == "rolled_back"
    assert everywhere(two, table) == before


def test_an_error_found_only_by_prepare_transaction_rolls_everything_back(two: Two, table: str) -> None:
    """A deferred constraint is checked when the transaction is prepared, the last moment at which it may fail."""
    two.service.query(
        f"create table {table}_child (n int references {table} deferrable initially deferred)", database="far"
    )
    orphan = at("far", f"insert into {table}_child values (7)")
    error = error_of(post(two.service, f"insert into {table} values (1)", orphan), 200, "foreign_key_violation")
    assert error["outcome"] == "rolled_back"
    assert "statement_index" not in error
    assert everywhere(two, table) == {"main": [], "far": [], "near": []}


def test_references_work_across_databases(two: Two, table: str) -> None:
    run(
        two.service,
        at("far", f"insert into {table} values (20), (21) returning n"),
        with_params(f"insert into {table} values ($1)", ref("0.rows.1.n")),
        at("near", f"insert into {table} values ($1)", ref("0.affected_rows")),
    )
    assert everywhere(two, table) == {"main": [21], "far": [20, 21], "near": [2]}


def test_an_expectation_in_one_database_decides_for_all(two: Two, table: str) -> None:
    statements = (
        f"insert into {table} values (1)",
        at("far", f"update {table} set n = 2", expect={"affected_rows": 1}),
    )
    error = error_of(post(two.service, *statements), 200, "expectation_failed")
    assert error["statement_index"] == 1
    assert everywhere(two, table) == {"main": [], "far": [], "near": []}
    two.service.query(f"insert into {table} values (1)", database="far")
    run(two.service, *statements)
    assert everywhere(two, table) == {"main": [1], "far": [2], "near": []}


def test_reading_several_databases_sees_one_consistent_state(two: Two, table: str) -> None:
    for name in ("main", "far"):
        two.service.query(f"insert into {table} values (0)", database=name)
    both = [at(name, f"update {table} set n = n + 1") for name in ("main", "far")]
    look = [at(name, f"select n from {table}") for name in ("far", "main")]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            run(two.service, *both)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            for _ in range(30):
                seen = [result["rows"][0]["n"] for result in run(two.service, *look, read_only=True)["results"]]
                assert seen[0] == seen[1]
        finally:
            stop.set()
            writer.result()
    assert everywhere(two, table)["main"] == everywhere(two, table)["far"] != [0]


def test_a_read_only_spanning_transaction_cannot_write_in_any_database(two: Two, table: str) -> None:
    writes = at("far", f"insert into {table} values (1)")
    error_of(post(two.service, "select 1", writes, read_only=True), 200, "read_only_sql_transaction")
    key = two.service.new_key("read")
    response = post(two.service, "select 1", writes, key=key)
    assert response.json()["success"] is False
    assert response.json()["error"]["statement_index"] == 1
    answer = post(two.service, "select 1", at("far", f"select count(*) as c from {table}"), key=key).json()
    assert answer["results"][1]["rows"] == [{"c": 0}]
    assert answer["transaction"]["participants"] == 2


def test_a_key_bound_to_one_database_cannot_span_databases(two: Two, table: str) -> None:
    key = two.service.new_key("write", database="far")
    error_of(post(two.service, at("far", "select 1"), at("near", "select 1"), key=key), 403, "forbidden")


def test_the_default_database_under_its_name_is_no_second_one(two: Two, table: str) -> None:
    before = two.records("true")
    answer = run(two.service, f"insert into {table} values (1)", at("main", f"insert into {table} values (2)"))
    assert answer["transaction"]["participants"] == 1
    assert two.records("true") == before
    assert everywhere(two, table)["main"] == [1, 2]


def test_there_is_a_limit_to_the_databases_of_a_transaction(two: Two) -> None:
    statements = [at(f"db{number}", "select 1") for number in range(9)]
    assert error_of(post(two.service, *statements), 400, "too_many_databases")["outcome"] == "not_executed"


def test_a_transaction_with_a_temporary_table_cannot_be_prepared_and_rolls_back(two: Two, table: str) -> None:
    statements = (f"insert into {table} values (1)", at("far", "create temp table gone ()"))
    error = error_of(post(two.service, *statements), 200, "feature_not_supported")
    assert error["outcome"] == "rolled_back"
    assert everywhere(two, table)["main"] == []


def test_a_request_with_a_key_is_done_once_in_all_databases(two: Two, table: str) -> None:
    key = secrets.token_hex(8)
    statements = [at(name, f"insert into {table} values ((select count(*) from {table}))") for name in ("far", "near")]
    first = post(two.service, *statements, idempotency_key=key)
    assert first.json()["transaction"]["participants"] == 2
    again = post(two.service, *statements, idempotency_key=key)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.content == first.content
    assert everywhere(two, table) == {"main": [], "far": [0], "near": [0]}
    error_of(post(two.service, *statements, idempotency_key=key, max_rows=1), 422, "idempotency_key_reused")
    # It is recorded where the first statement goes.
    found = {
        name: two.service.call("GET", f"/v1/requests/{key}", headers={"X-Database": name}).json()["request"]["outcome"]
        for name in ("far", "near")
    }
    assert found == {"far": "committed", "near": "not_executed"}


def test_a_keyed_request_that_fails_is_not_recorded(two: Two, table: str) -> None:
    key = secrets.token_hex(8)
    statements = [at("far", f"insert into {table} values (1)"), at("near", f"insert into {table} values (1)")]
    two.service.query(f"insert into {table} values (1)", database="near")
    error_of(post(two.service, *statements, idempotency_key=key), 200, "unique_violation")
    two.service.query(f"delete from {table}", database="near")
    assert post(two.service, *statements, idempotency_key=key).json()["success"]
    assert everywhere(two, table) == {"main": [], "far": [1], "near": [1]}


def test_concurrent_spanning_transactions_all_succeed(two: Two, table: str) -> None:
    def send(number: int) -> httpx.Response:
        return post(two.service, *(at(name, f"insert into {table} values ({number})") for name in ("far", "near")))

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(send, range(60)))
    assert [answer.json()["success"] for answer in answers] == [True] * 60
    assert everywhere(two, table) == {"main": [], "far": list(range(60)), "near": list(range(60))}


@contextmanager
def every_place_taken(cell: Postgres) -> Iterator[None]:
    """As many transactions are prepared on the cell as may be, for the length of the block."""
    with cell.connect() as admin:
        row = admin.execute("show max_prepared_transactions").fetchone()
        assert row is not None
        gids = [f"place_{number}" for number in range(int(row[0]))]
        for gid in gids:
            admin.execute("begin")
            admin.execute(f"prepare transaction '{gid}'".encode())
        try:
            yield
        finally:
            for gid in gids:
                admin.execute(f"rollback prepared '{gid}'".encode())


def test_a_cell_without_free_prepared_transactions_rolls_back_with_a_retry_time(two: Two, table: str) -> None:
    both = [at(name, f"insert into {table} values (1)") for name in ("near", "far")]
    with every_place_taken(two.other):
        response = post(two.service, *both)
        assert error_of(response, 503, "overloaded")["outcome"] == "rolled_back"
        assert int(response.headers["Retry-After"]) >= 1
        assert everywhere(two, table) == {"main": [], "far": [], "near": []}
        # What stays in one database needs no place.
        two.service.query(f"insert into {table} values (2)", database="far")
    run(two.service, *both)
    assert everywhere(two, table) == {"main": [], "far": [1, 2], "near": [1]}


def hold_lock(two: Two, *, hold_s: float) -> None:
    """As another node would that has the turn and died with it a moment ago."""
    with two.service.engine("plainsql_directory") as directory:
        directory.execute(
            "insert into spanning_transactions (id, organization_id, gid, database_ids, state, held_until)"
            " select 'txn_held', id, 'plainsql_held', '{}', 'open', now() + %s * interval '1 s'"
            " from organizations where name = 'dev'",
            (hold_s,),
        )


def drop_lock(two: Two) -> None:
    with two.service.engine("plainsql_directory") as directory:
        directory.execute("delete from spanning_transactions where id = 'txn_held'")


def test_a_request_without_a_slot_in_time_gets_a_retry_time(two: Two, table: str) -> None:
    both = [at(name, f"insert into {table} values (1)") for name in ("far", "near")]
    hold_lock(two, hold_s=60)
    try:
        began_s = time.monotonic()
        response = post(two.service, *both, timeout_ms=400)
        error = error_of(response, 503, "overloaded")
        assert error["outcome"] == "not_executed"
        assert int(response.headers["Retry-After"]) >= 1
        assert time.monotonic() - began_s < 2 + STALL_S
        # What stays in one database waits for nobody.
        run(two.service, f"insert into {table} values (1)")
    finally:
        drop_lock(two)
    run(two.service, *both)


def test_a_spanning_lock_of_a_dead_process_passes_to_the_next_waiter_in_time(two: Two, table: str) -> None:
    began_s = time.monotonic()
    hold_lock(two, hold_s=1)
    run(two.service, *(at(name, f"insert into {table} values (1)") for name in ("far", "near")))
    assert 0.9 < time.monotonic() - began_s < 10 + STALL_S
    drop_lock(two)


def test_a_deadline_rolls_everything_back(two: Two, table: str) -> None:
    statements = (f"insert into {table} values (1)", at("far", "select pg_sleep(30)"))
    error = error_of(post(two.service, *statements, timeout_ms=500), 200, "transaction_deadline_exceeded")
    assert error["outcome"] == "rolled_back"
    assert everywhere(two, table)["main"] == []


def test_a_result_that_is_too_large_rolls_everything_back(two: Two, table: str) -> None:
    large = "select repeat('x', 1000000) as x from generate_series(1, 40)"
    error = error_of(
        post(two.service, f"insert into {table} values (1)", large, at("far", large)), 200, "result_too_large"
    )
    assert error["outcome"] == "rolled_back"
    assert everywhere(two, table)["main"] == []


def test_a_disconnected_client_leaves_nothing_behind(two: Two, table: str) -> None:
    statements = (f"insert into {table} values (1)", at("far", "select pg_sleep(20)"))
    with httpx.Client(verify=False, timeout=httpx.Timeout(30, read=0.5)) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(
            f"{two.service.data_url}/v1/transaction",
            content=json.dumps({"statements": list(statements)}),
            headers={"Authorization": f"Bearer {two.service.api_key}", "Content-Type": "application/json"},
        )
    wait_for(lambda: two.records() == 0, BOUND_S, lambda: "the record stays")
    assert everywhere(two, table)["main"] == []
    # The turn is free at once.
    run(two.service, *(at(name, f"insert into {table} values (1)") for name in ("far", "near")), timeout_ms=2000)


def test_a_tenant_sees_no_prepared_transactions_and_ends_none(two: Two, table: str) -> None:
    error_of(two.service.post_query("select * from pg_prepared_xacts"), 200, "insufficient_privilege")
    error_of(two.service.post_query("select * from pg_prepared_xact()"), 200, "insufficient_privilege")
    for text in (
        "prepare transaction 'x'",
        "commit prepared 'x'",
        "rollback prepared 'x'",
        "/* x */ PREPARE transaction 'x'",
    ):
        error_of(two.service.post_query(text), 400, "transaction_control")
        error_of(post(two.service, "select 1", at("far", text)), 400, "transaction_control")
        wrapped = two.service.post_query(f"do $do$ begin execute $x${text}$x$; end $do$")
        assert wrapped.json()["success"] is False


def test_usage_is_counted_in_each_database(two: Two, table: str) -> None:
    """Each database has its own rows; the whole of it is not the first one's."""
    run(two.service, at("far", "select generate_series(1, 11)"), at("near", "select generate_series(1, 7)"))

    def rows() -> dict[str, int]:
        with two.service.engine("plainsql_directory") as directory:
            found = directory.execute(
                "select d.name, sum(u.rows)::int from usage u join databases d on d.id = u.database_id group by 1"
            ).fetchall()
        return dict(found)

    wait_for(lambda: rows().get("far", 0) >= 11 and rows().get("near", 0) >= 7, 20, lambda: str(rows()))


def test_failed_statements_are_counted_in_their_database(two: Two, table: str) -> None:
    """Each database has its own time, and one whose statement was not reached has none."""

    def used_s() -> dict[str, float]:
        with two.service.engine("plainsql_directory") as directory:
            found = directory.execute(
                "select d.name, sum(u.engine_us)::float8 / 1e6 from databases d"
                " left join usage u on d.id = u.database_id group by 1"
            ).fetchall()
        return {name: seconds or 0.0 for name, seconds in found}

    before = used_s()
    post(
        two.service, f"insert into {table} values (1)", at("far", "select pg_sleep(2)"), at("far", "select 1 / 0"),
        at("near", "select 1"),
    )  # fmt: skip
    wait_for(lambda: used_s()["far"] >= before["far"] + 2, 20, lambda: str(used_s()))
    # Requests of earlier tests may be counted with it.
    assert used_s()["main"] < before["main"] + 2
    assert used_s()["near"] < before["near"] + 2


def test_an_unavailable_second_cell_rolls_everything_back(two: Two, table: str) -> None:
    """The connections of the far database are ended under the transaction."""
    with two.other.connect() as cell, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(
            post, two.service, f"insert into {table} values (1)", at("far", f"insert into {table} values (1)"),
            at("far", "select pg_sleep(20)"),
        )  # fmt: skip
        running = "select pid from pg_stat_activity where query like '%pg_sleep(20)%' and pid <> pg_backend_pid()"
        wait_for(lambda: cell.execute(running).fetchone(), 30, lambda: "it does not run")
        cell.execute(f"select pg_terminate_backend(pid) from ({running}) r".encode())
        error = error_of(slow.result(), 503, "engine_unavailable")
    assert error["outcome"] == "rolled_back"
    assert everywhere(two, table) == {"main": [], "far": [], "near": []}
