"""The shape of a result, over HTTPS: columns, rows, truncation, commands; and both routes alike."""

from typing import Any

import httpx
import pytest

from server.tests.service import Service

NAMES = [
    # SQL, columns of objects, columns of arrays
    ("select 1 a, 2 a", ["a", "a_1"], ["a", "a"]),
    ("select 1 a, 2 a, 3 a", ["a", "a_1", "a_2"], ["a", "a", "a"]),
    ("select 1 a, 2 a, 3 a_1", ["a", "a_2", "a_1"], ["a", "a", "a_1"]),
    ("select 1 a_1, 2 a, 3 a", ["a_1", "a", "a_2"], ["a_1", "a", "a"]),
    ("select 1 a, 2 a, 3 a_1, 4 a_1", ["a", "a_2", "a_1", "a_1_1"], ["a", "a", "a_1", "a_1"]),
    ('select 1 a, 2 "A"', ["a", "A"], ["a", "A"]),
    ("select 1, 2, 3", ["?column?", "?column?_1", "?column?_2"], ["?column?", "?column?", "?column?"]),
    ("select count(*), count(*) from pg_type where false", ["count", "count_1"], ["count", "count"]),
    ('select 1 "100%", 2 "%s", 3 "%(a)s %%"', ["100%", "%s", "%(a)s %%"], ["100%", "%s", "%(a)s %%"]),
    ('select 1 "a""b\\c"', ['a"b\\c'], ['a"b\\c']),
    ('select 1 "line\nbreak\ttab\x01"', ["line\nbreak\ttab\x01"], ["line\nbreak\ttab\x01"]),
    ('select 1 "grün 😀 שלום"', ["grün 😀 שלום"], ["grün 😀 שלום"]),
    ('select 1 " "', [" "], [" "]),
    ("select", [], []),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "names", "original"), NAMES)
def test_columns_are_named_as_the_statement_names_them_and_twins_are_renamed_in_objects_only(
    service: Service, sql: str, names: list[str], original: list[str]
) -> None:
    objects = service.query(sql)
    arrays = service.query(sql, row_format="array")
    assert objects["columns"] == names
    assert [list(row) for row in objects["rows"]] == [names]
    assert arrays["columns"] == original
    assert [list(row.values()) for row in objects["rows"]] == arrays["rows"]


def test_no_value_is_lost_among_hundreds_of_columns_of_one_name(service: Service) -> None:
    (row,) = service.query("select " + ", ".join(f"{number} a" for number in range(1600)))["rows"]
    assert list(row.items()) == [("a", 0), *((f"a_{number}", number) for number in range(1, 1600))]


@pytest.mark.parametrize("row_format", ["object", "array"])
def test_an_empty_result_keeps_its_columns_and_types(service: Service, row_format: str) -> None:
    answer = service.query("select 1 a, 'x'::text b, null::int8[] c where false", row_format=row_format)
    assert (answer["columns"], answer["types"]) == (["a", "b", "c"], ["int4", "text", "int8[]"])
    assert (answer["rows"], answer["row_count"], answer["truncated"]) == ([], 0, False)


@pytest.mark.parametrize(("row_format", "row"), [("object", {}), ("array", [])])
def test_rows_without_columns_are_counted(service: Service, row_format: str, row: Any) -> None:
    answer = service.query("select from generate_series(1, 2)", row_format=row_format)
    assert (answer["columns"], answer["types"], answer["rows"], answer["row_count"]) == ([], [], [row, row], 2)


TRUNCATION = [
    # rows of the statement, max_rows, rows of the answer, truncated
    (2, 3, 2, False),
    (3, 3, 3, False),
    (4, 3, 3, True),
    (0, 0, 0, False),
    (1, 0, 0, True),
    (5, 0, 0, True),
    (1, 1, 1, False),
    (0, 1, 0, False),
    # Around the number of rows that the engine's answer is read in.
    (255, 256, 255, False),
    (256, 256, 256, False),
    (257, 256, 256, True),
    (512, 512, 512, False),
    (513, 512, 512, True),
    (1000, 300, 300, True),
    (1000, None, 1000, False),
    # The tier's own limit.
    (100_000, None, 100_000, False),
    (100_001, None, 100_000, True),
    (100_001, 200_000, 100_000, True),
]  # fmt: skip


@pytest.mark.parametrize(("produced", "max_rows", "expected", "truncated"), TRUNCATION)
def test_truncated_is_true_exactly_if_there_were_more_rows(
    service: Service, produced: int, max_rows: int | None, expected: int, truncated: bool
) -> None:
    fields = {} if max_rows is None else {"max_rows": max_rows}
    answer = service.query(f"select n from generate_series(1, {produced}) n", row_format="array", **fields)
    assert (answer["row_count"], answer["truncated"]) == (expected, truncated)
    assert answer["rows"] == [[number] for number in range(1, expected + 1)]
    assert (answer["columns"], answer["types"], answer["command"]) == (["n"], ["int4"], "SELECT")


def test_a_truncated_insert_still_writes_every_row(service: Service) -> None:
    service.query("create table results_truncated (n int4)")
    answer = service.query("insert into results_truncated select generate_series(1, 1000) returning n", max_rows=1)
    assert (answer["rows"], answer["truncated"], answer["affected_rows"]) == ([{"n": 1}], True, 1000)
    assert service.value("select count(*) from results_truncated") == 1000
    service.query("drop table results_truncated")


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_rows", -1), ("max_rows", "1"), ("max_rows", 1.5), ("row_format", "list"), ("big_numbers", "float")],
)
def test_an_invalid_option_is_rejected(service: Service, field: str, value: Any) -> None:
    response = service.post_query("select 1", **{field: value})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "malformed_request")


# Run in this order, each on what the ones before it left. The command is the engine's own tag, so that
# CREATE TABLE AS and SELECT INTO are SELECT, as VALUES and TABLE are.
COMMANDS = [
    # SQL, command, affected_rows, rows
    ("create table results_t (id int4 primary key, word text)", "CREATE TABLE", 0, []),
    ("insert into results_t values (1, 'a'), (2, 'b'), (3, 'c')", "INSERT", 3, []),
    ("insert into results_t select 1, 'x' where false", "INSERT", 0, []),
    ("insert into results_t values (4, 'd'), (5, 'e') returning id, word", "INSERT", 2, [[4, "d"], [5, "e"]]),
    ("insert into results_t values (1, 'z') on conflict do nothing", "INSERT", 0, []),
    ("insert into results_t values (1, 'z') on conflict (id) do update set word = 'A'", "INSERT", 1, []),
    ("update results_t set word = upper(word) where id < 3", "UPDATE", 2, []),
    ("update results_t set word = 'none' where false", "UPDATE", 0, []),
    ("update results_t set word = 'C' where id = 3 returning word", "UPDATE", 1, [["C"]]),
    ("delete from results_t where id = 5", "DELETE", 1, []),
    ("delete from results_t where id = 4 returning id", "DELETE", 1, [[4]]),
    ("delete from results_t where false", "DELETE", 0, []),
    ("merge into results_t t using (values (1, 'm'), (9, 'n')) v (id, word) on t.id = v.id"
     " when matched then update set word = v.word when not matched then insert values (v.id, v.word)", "MERGE", 2, []),
    ("select * from results_t order by id", "SELECT", 0, [[1, "m"], [2, "B"], [3, "C"], [9, "n"]]),
    ("with gone as (delete from results_t where id = 9 returning id) select id from gone", "SELECT", 0, [[9]]),
    ("with one as (select 1 as id) update results_t t set word = 'M' from one where t.id = one.id", "UPDATE", 1, []),
    ("table results_t", "SELECT", 0, [[2, "B"], [3, "C"], [1, "M"]]),
    ("values (1, 'a'), (2, 'b')", "SELECT", 0, [[1, "a"], [2, "b"]]),
    ("create table results_as as select * from results_t", "SELECT", 3, []),
    ("create table results_no_data as select * from results_t with no data", "CREATE TABLE AS", 0, []),
    ("select * into results_into from results_t", "SELECT", 3, []),
    ("create view results_view as select count(*) from results_as", "CREATE VIEW", 0, []),
    ("select * from results_view", "SELECT", 0, [[3]]),
    ("create materialized view results_mat as select id from results_into", "SELECT", 3, []),
    ("refresh materialized view results_mat", "REFRESH MATERIALIZED VIEW", 0, []),
    ("create index results_index on results_t (word)", "CREATE INDEX", 0, []),
    ("create index concurrently results_index_2 on results_t (word)", "CREATE INDEX", 0, []),
    ("alter table results_t add column more int4", "ALTER TABLE", 0, []),
    ("comment on table results_t is 'a table'", "COMMENT", 0, []),
    ("explain (costs off) select 1", "EXPLAIN", 0, [["Result"]]),
    ("explain (analyze, costs off, timing off, summary off, buffers off) insert into results_as values (7, 'x')",
     "EXPLAIN", 0, [["Insert on results_as (actual rows=0 loops=1)"], ["  ->  Result (actual rows=1 loops=1)"]]),
    ("show timezone", "SHOW", 0, [["UTC"]]),
    ("set work_mem = '1MB'", "SET", 0, []),
    ("reset work_mem", "RESET", 0, []),
    ("do $$ begin delete from results_as; end $$", "DO", 0, []),
    ("create procedure results_proc(inout x int4) language plpgsql as $$ begin x := x + 1; end $$",
     "CREATE PROCEDURE", 0, []),
    ("call results_proc(41)", "CALL", 0, [[42]]),
    ("create function results_two() returns setof int4 language sql as 'values (1), (2)'", "CREATE FUNCTION", 0, []),
    ("select * from results_two()", "SELECT", 0, [[1], [2]]),
    ("analyze results_t", "ANALYZE", 0, []),
    ("vacuum results_t", "VACUUM", 0, []),
    ("vacuum (full, analyze) results_t", "VACUUM", 0, []),
    ("truncate results_t", "TRUNCATE TABLE", 0, []),
    ("drop function results_two", "DROP FUNCTION", 0, []),
    ("drop procedure results_proc", "DROP PROCEDURE", 0, []),
    ("drop materialized view results_mat", "DROP MATERIALIZED VIEW", 0, []),
    ("drop view results_view", "DROP VIEW", 0, []),
    ("drop table results_t, results_as, results_no_data, results_into", "DROP TABLE", 0, []),
    ("drop table if exists results_t", "DROP TABLE", 0, []),
]  # fmt: skip


@pytest.mark.parametrize("route", ["/v1/query", "/query"])
def test_each_command_is_named_and_counts_the_rows_that_it_changed(service: Service, route: str) -> None:
    post = service.post_query if route == "/v1/query" else service.post_text
    seen = []
    for sql, *_ in COMMANDS:
        answer = post(sql, row_format="array").json()
        assert answer["success"], (sql, answer)
        assert answer["row_count"] == len(answer["rows"])
        seen.append((sql, answer["command"], answer["affected_rows"], answer["rows"]))
    assert seen == COMMANDS


def test_parameters_do_not_change_what_is_counted(service: Service) -> None:
    service.query("create table results_counted (id int4)")
    inserted = service.query("insert into results_counted select generate_series(1, $1::int4)", 1000)
    updated = service.query("update results_counted set id = -id where id > $1", 990)
    assert [(answer["command"], answer["affected_rows"]) for answer in (inserted, updated)] == [
        ("INSERT", 1000), ("UPDATE", 10),
    ]  # fmt: skip
    service.query("drop table results_counted")


ALIKE = [
    # SQL and options that both routes take
    ("select 1 a, 2 a, 'grün 😀' b", {}),
    ("select 1 a, 2 a", {"row_format": "array"}),
    ("select 9223372036854775807 a, 1.50 b", {"big_numbers": "string"}),
    ("select n from generate_series(1, 10) n", {"max_rows": 3}),
    ("select n from generate_series(1, 10) n", {"max_rows": 0, "row_format": "array"}),
    ("select 1 where false", {}),
    ("select", {}),
    ("select null::bytea, 'NaN'::float8, array[[1, null]], '{\"a\": 1}'::jsonb, now() - now()", {}),
    ("  /* a comment */ select 1; -- the end", {}),
    ("create table if not exists pg_temp.results_nothing ()", {}),
    ("select 1; select 2", {}),
    ("", {}),
    ("begin", {}),
    ("selec 1", {}),
    ("select * from results_missing", {}),
    ("select 1/0", {}),
    ("select pg_sleep(5)", {"timeout_ms": 50}),
    ("copy pg_type to stdout", {}),
    ("do $$ begin raise exception 'mine' using errcode = 'ZZ999', detail = 'd', hint = 'h'; end $$", {}),
]  # fmt: skip


def without_what_differs(response: httpx.Response) -> tuple[int, dict[str, Any]]:
    answer = response.json()
    assert set(answer["timings"]) == {"total_us", "exec_us"}
    assert answer["request_id"] == response.headers["X-Request-Id"]
    return response.status_code, {key: answer[key] for key in answer if key not in ("timings", "request_id")}


@pytest.mark.parametrize(("sql", "options"), ALIKE)
def test_both_routes_give_the_same_answer(service: Service, sql: str, options: dict[str, Any]) -> None:
    as_json = without_what_differs(service.post_query(sql, **options))
    as_text = without_what_differs(service.post_text(sql, **options))
    assert as_json == as_text


def test_an_answer_has_these_fields_in_this_order(service: Service) -> None:
    assert list(service.query("select 1")) == [
        "success", "columns", "types", "rows", "row_count", "truncated", "affected_rows", "command", "timings",
        "request_id",
    ]  # fmt: skip
