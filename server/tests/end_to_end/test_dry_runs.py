"""Dry runs, digests, and results that must not have changed: `dry_run`, `digest`, `expect` and `rows`."""

import secrets
from typing import Any

import pytest

from plainsql_server.limits.tiers import TIERS
from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.transactions import Sent, fresh_table, numbers, post, run, with_params
from server.tests.processes import wait_for
from server.tests.service import Service


def digest_of(service: Service, sql: str, *params: Any, **fields: Any) -> tuple[str, str]:
    """The two digests of a statement's result, as a dry run gives them."""
    answer = run(service, with_params(sql, *params, digest=True), dry_run=True, **fields)
    result = answer["results"][0]
    return result["digest"], result["multiset_digest"]


def test_a_dry_run_answers_like_a_transaction_and_leaves_nothing(service: Service) -> None:
    table = fresh_table(service)
    statements = [f"insert into {table} values (1), (2) returning n", f"select n from {table} order by n"]
    answer = run(service, *statements, dry_run=True)
    assert [result["rows"] for result in answer["results"]] == [[{"n": 1}, {"n": 2}]] * 2
    assert answer["affected_rows"] == 2
    assert answer["transaction"]["dry_run"] is True
    assert answer["transaction"]["now"].endswith("Z")
    assert numbers(service, table) == []
    assert "dry_run" not in run(service, *statements)["transaction"]
    assert numbers(service, table) == [1, 2]


@pytest.mark.parametrize("name", ["digest", "multiset_digest"])
def test_an_expected_digest_holds_until_the_result_changes(service: Service, name: str) -> None:
    table = fresh_table(service)
    read = f"select n from {table}"
    digests = dict(zip(("digest", "multiset_digest"), digest_of(service, read), strict=True))
    verified = {"sql": read, "expect": {name: digests[name]}, "rows": False}
    assert run(service, verified, f"insert into {table} values (1)")["results"][0]["rows"] == []
    error = error_of(post(service, verified, f"insert into {table} values (2)"), 200, "serialization_failure")
    assert (error["sqlstate"], error["retryable"]) == ("40001", True)
    assert (error["statement_index"], error["outcome"]) == (0, "rolled_back")
    assert numbers(service, table) == [1]


@pytest.mark.parametrize("read", ["select random()", "select clock_timestamp()", "select gen_random_uuid()"])
def test_a_result_that_differs_from_itself_is_volatile(service: Service, read: str) -> None:
    table = fresh_table(service)
    expect = {"digest": digest_of(service, read)[0]}
    response = post(service, f"insert into {table} values (1)", {"sql": read, "expect": expect})
    error = error_of(response, 200, "volatile_read")
    assert (error["retryable"], error["statement_index"]) == (False, 1)
    assert numbers(service, table) == []


VOLATILE = [
    "insert into {t} (v) values ('new') on conflict (v) do update set v = excluded.v returning id",
    "insert into {t} (v) values ('new') returning id",
    "select ctid from {t}, (select pg_sleep(0)) s order by random()",
]


@pytest.mark.parametrize("sql", VOLATILE)
def test_a_write_or_an_order_that_differs_each_time_is_volatile(service: Service, sql: str) -> None:
    table = fresh_table(service, "id serial primary key, v text unique")
    service.query(f"insert into {table} (v) select g::text from generate_series(1, 50) g")
    statement = sql.format(t=table)
    expect = {"digest": digest_of(service, statement)[0]}
    error_of(post(service, {"sql": statement, "expect": expect}), 200, "volatile_read")
    assert service.value(f"select count(*) from {table}") == 50


def test_a_write_that_depends_on_what_it_changes_is_no_volatile_read(service: Service) -> None:
    table = fresh_table(service)
    service.query(f"insert into {table} values (1)")
    update = f"update {table} set n = n + 1 returning n"
    expect = {"digest": digest_of(service, update)[0]}
    assert run(service, {"sql": update, "expect": expect})["results"][0]["rows"] == [{"n": 2}]
    error_of(post(service, {"sql": update, "expect": expect}), 200, "serialization_failure")
    assert numbers(service, table) == [2]


def test_the_service_does_not_repeat_what_only_the_caller_can(service: Service) -> None:
    table = fresh_table(service)
    service.query(f"create sequence {table}_s")
    read: Sent = {"sql": f"select n from {table}", "expect": {"digest": "0" * 32}}
    error_of(post(service, f"select nextval('{table}_s')", read), 200, "serialization_failure")
    # Once for the request, and once to find out whether the read is volatile.
    assert service.value(f"select last_value from {table}_s") == 2


def test_a_read_that_takes_too_long_to_run_again_is_a_conflict(service: Service) -> None:
    read = {"sql": "select 1 from (select pg_sleep(2)) s", "expect": {"digest": "0" * 32}}
    error = error_of(post(service, read, timeout_ms=5_000), 200, "serialization_failure")
    assert (error["retryable"], error["outcome"]) == (True, "rolled_back")


TIMES = [
    "select now()", "select localtimestamp, current_timestamp", "select now()::text as t", "select to_json(now())",
    "select array[now()], row(now(), 1)", "insert into {t} (n) values (9) returning at",
    "update {t} set at = now() where n = 1 returning n, at",
]  # fmt: skip


@pytest.mark.parametrize("sql", TIMES)
def test_the_transactions_own_time_is_no_difference(service: Service, sql: str) -> None:
    table = fresh_table(service, "n int primary key, at timestamptz default now()")
    service.query(f"insert into {table} (n) values (1)")
    statement = {"sql": sql.format(t=table), "digest": True}
    read = {"sql": f"select * from {table} order by n", "digest": True}
    first = run(service, statement, read, dry_run=True)
    second = run(service, statement, read, dry_run=True, nows=[first["transaction"]["now"]])
    assert first["transaction"]["now"] < second["transaction"]["now"]
    for one, other in zip(first["results"], second["results"], strict=True):
        assert (one["digest"], one["multiset_digest"]) == (other["digest"], other["multiset_digest"])


def test_a_time_of_another_transaction_is_a_difference(service: Service) -> None:
    table = fresh_table(service, "n int, at timestamptz")
    service.query(f"insert into {table} values (1, now())")
    before = digest_of(service, f"select * from {table}")
    service.query(f"update {table} set at = now()")
    assert digest_of(service, f"select * from {table}") != before


def test_a_digest_is_of_the_rows_and_not_of_the_answer(service: Service) -> None:
    table = fresh_table(service, "n int, v text")
    service.query(f"insert into {table} select g, nullif(g % 7, 3)::text from generate_series(1, 1000) g")
    read = f"select n, v from {table} order by n"
    whole = digest_of(service, read)
    assert digest_of(service, read, row_format="array", big_numbers="string", max_rows=3) == whole
    assert run(service, {"sql": read, "digest": True, "rows": False})["results"][0]["digest"] == whole[0]
    for plan in ("enable_seqscan", "enable_sort", "enable_hashagg"):
        answer = run(service, f"set local {plan} = off", {"sql": read, "digest": True}, dry_run=True)
        assert answer["results"][1]["digest"] == whole[0]
    backwards = digest_of(service, f"{read} desc")
    assert (backwards[0] != whole[0], backwards[1] == whole[1]) == (True, True)
    for other in (f"{read} limit 999", f"select n as m, v from {table}", f"select n::int8, v from {table}"):
        assert digest_of(service, other)[1] != whole[1]
    service.query(f"update {table} set v = '' where v is null and n = 3")
    assert digest_of(service, read)[1] != whole[1]


def test_the_name_of_a_type_that_is_not_built_in_is_no_difference(service: Service) -> None:
    name = f"mood_{secrets.token_hex(6)}"
    service.query(f"create type {name} as enum ('calm')")
    table = fresh_table(service, f"v {name}, vs {name}[]")
    service.query(f"insert into {table} values ('calm', array['calm']::{name}[])")
    before = digest_of(service, f"select * from {table}")
    service.query(f"alter type {name} rename to {name}_b")
    assert digest_of(service, f"select * from {table}") == before
    assert digest_of(service, f"select v::text as v, vs from {table}") != before


def test_without_rows_the_counts_remain(service: Service) -> None:
    key = f"key-{secrets.token_hex(8)}"
    statement = {"sql": "select g as n from generate_series(1, 50) g", "rows": False, "digest": True}
    answers = [post(service, statement, idempotency_key=key, max_rows=7) for _ in range(2)]
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert answers[0].json()["transaction"]["now"] == answers[1].json()["transaction"]["now"]
    for answer in answers:
        (result,) = answer.json()["results"]
        assert (result["rows"], result["row_count"], result["truncated"]) == ([], 50, False)
        assert (result["columns"], result["types"]) == ([], [])


LEAVINGS = [
    "insert into {t} values (1)", "create table {t}_made (n int)", "create temp table {t}_temp (n int)",
    "select lo_create(0)", "do $$ begin perform nextval('{t}_s'); end $$", "comment on table {t} is 'rehearsed'",
    "create function {t}_f() returns int language sql as 'select 1'", "alter table {t} add column v text",
    "set search_path = pg_catalog", "select set_config('work_mem', '99MB', false)",
]  # fmt: skip


def test_a_dry_run_leaves_nothing_but_advanced_sequences_and_dead_rows(service: Service) -> None:
    table = fresh_table(service)
    service.query(f"create sequence {table}_s")
    before = _state(service, table)
    run(service, *[each.format(t=table) for each in LEAVINGS], dry_run=True)
    assert _state(service, table) == before
    assert service.value(f"select nextval('{table}_s')") == 2
    assert service.value("select current_setting('search_path') || current_setting('work_mem')") == before["settings"]
    run(service, f"insert into {table} values (1), (2)", dry_run=True)
    wait_for(lambda: _dead_rows(service, table) > 0, 30.0, lambda: "the rows that were rolled back are not counted")


@pytest.mark.parametrize("call", ["pg_advisory_lock(1)", "pg_notify('a', 'b')"])
def test_locks_and_notifications_that_would_outlive_it_are_refused(service: Service, call: str) -> None:
    error = error_of(post(service, f"select {call}", dry_run=True), 200, "insufficient_privilege")
    assert error["outcome"] == "rolled_back"


def _state(service: Service, table: str) -> dict[str, Any]:
    found: dict[str, Any] = service.query(
        f"""select (select count(*) from {table}) as rows,
        (select count(*) from pg_class where relname like '{table}%') as relations,
        (select count(*) from pg_proc where proname like '{table}%') as functions,
        (select count(*) from pg_largeobject_metadata) as large_objects,
        (select count(*) from pg_attribute where attrelid = '{table}'::regclass) as columns,
        obj_description('{table}'::regclass) as comment,
        current_setting('search_path') || current_setting('work_mem') as settings"""
    )["rows"][0]
    return found


def _dead_rows(service: Service, table: str) -> int:
    dead: int = service.value(f"select n_dead_tup from pg_stat_user_tables where relname = '{table}'")
    return dead


def test_deferred_constraints_are_checked_if_wanted(service: Service) -> None:
    parent = fresh_table(service)
    child = fresh_table(service, f"n int references {parent} deferrable initially deferred")
    insert = f"insert into {child} values (1)"
    assert run(service, insert, dry_run=True)["affected_rows"] == 1
    error_of(post(service, insert, dry_run=True, check_deferred=True), 200, "foreign_key_violation")
    whole = run(service, insert, f"insert into {parent} values (1)", dry_run=True, check_deferred=True)
    assert whole["affected_rows"] == 2
    error_of(post(service, insert, check_deferred=True), 400, "malformed_request")


def test_the_key_of_a_dry_run_is_not_used_up(service: Service) -> None:
    table, key = fresh_table(service), f"key-{secrets.token_hex(8)}"
    insert = f"insert into {table} values (1)"
    for _ in range(2):
        response = post(service, insert, dry_run=True, idempotency_key=key)
        assert "idempotency-replayed" not in response.headers
    found = service.call("GET", f"/v1/requests/{key}").json()["request"]
    assert found["outcome"] == "not_executed"
    assert "idempotency-replayed" not in post(service, insert, idempotency_key=key).headers
    assert numbers(service, table) == [1]


def test_several_databases_cannot_be_rehearsed(service: Service) -> None:
    other = tenants.second_database(service)
    for fields, dry_run in (({}, True), ({"digest": True}, False), ({"expect": {"digest": "0" * 32}}, False)):
        statements: list[Sent] = ["select 1", {"sql": "select 2", "database": other, **fields}]
        error_of(post(service, *statements, dry_run=dry_run), 400, "rehearsal_spans_databases")


def test_verified_reads_have_a_limit_of_their_own(service: Service) -> None:
    key = tenants.free_key(service)
    digest = digest_of(service, "select 1", key=key)[0]
    verified = {"sql": "select 1", "expect": {"digest": digest}, "rows": False}
    assert len(run(service, *[verified] * 500, *["select 2"] * 100, key=key)["results"]) == 600
    error = error_of(post(service, *[verified] * 501, "select 2", key=key), 400, "too_many_verified_reads")
    assert "501" in error["message"]
    assert "500" in error["message"]
    for other in ("select 2", {**verified, "rows": True}, {**verified, "sql": "update t set a = 1"}):
        error_of(post(service, *[verified] * 10, *[other] * 101, key=key), 400, "too_many_statements")


def test_a_read_only_key_can_rehearse_reads_alone(service: Service) -> None:
    table, key = fresh_table(service), tenants.read_key(service)
    assert run(service, f"select n from {table}", dry_run=True, key=key)["transaction"]["dry_run"]
    response = post(service, f"insert into {table} values (1)", dry_run=True, key=key)
    assert response.json()["error"]["sqlstate"] in ("25006", "42501")


def test_a_result_that_is_too_large_to_hash_is_refused(service: Service) -> None:
    key = tenants.free_key(service)
    read = {"sql": "select repeat('x', 1000) from generate_series(1, 20000)", "digest": True, "rows": False}
    # The COMMIT may have been sent before the size is known. Here it is not reached before the cancel.
    error = error_of(post(service, read, "select pg_sleep(20)", key=key), 200, "result_too_large")
    assert error["outcome"] == "rolled_back"


def test_results_that_are_too_large_to_hash_together_are_refused(service: Service) -> None:
    key = tenants.free_key(service)
    rows = TIERS["free"].result_bytes * 9 // 10 // 1_032
    read = {"sql": f"select repeat('x', 1000) from generate_series(1, {rows})", "digest": True, "rows": False}
    assert len(run(service, *[read] * 4, dry_run=True, key=key)["results"]) == 4
    error = error_of(post(service, *[read] * 5, dry_run=True, key=key), 200, "result_too_large")
    assert error["outcome"] == "rolled_back"


def test_what_a_rehearsal_prepared_does_not_disturb_what_comes_after(service: Service) -> None:
    name = f"t_{secrets.token_hex(6)}"
    insert = with_params(f"insert into {name} values ($1) returning *", "1")
    for type_ in ("int", "text", "numeric"):
        rows = run(service, f"create table {name} (v {type_})", insert, dry_run=True)["results"][1]["rows"]
        assert rows == [{"v": "1" if type_ == "text" else 1}]


def test_rehearsals_of_two_reads_that_conflict_let_one_commit(service: Service) -> None:
    """A write skew: each reads both rows and changes the other. The second commit finds what it read changed."""
    table = fresh_table(service, "n int primary key, on_call bool")
    service.query(f"insert into {table} values (1, true), (2, true)")
    read = f"select count(*) from {table} where on_call"
    units: list[list[Sent]] = []
    for at in (1, 2):
        expect = {"digest": digest_of(service, read)[0]}
        units.append(
            [{"sql": read, "expect": expect, "rows": False}, f"update {table} set on_call = false where n = {at}"]
        )
    run(service, *units[0])
    error_of(post(service, *units[1]), 200, "serialization_failure")
    assert service.value(read) == 1
