"""`$ref` and `expect`: a statement that uses an earlier one's result, and one that must have had an effect."""

import time
from typing import Any

import pytest

from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.transactions import Sent, fresh_table, last_row, numbers, post, ref, run, with_params
from server.tests.load import STALL_S
from server.tests.service import Service

EXACT = [
    ("int4", "42"), ("int8", "'-9223372036854775808'"), ("numeric", "'12345678901234567890.1234567890123456789000'"),
    ("float8", "'0.1'"), ("float8", "'NaN'"), ("bool", "true"), ("text", "'ä\"\\,{}'''"), ("text", "''"),
    ("bytea", "'\\x00ff5c'"), ("json", """'{"a": [1, 2.50], "$ref": "0.rows.0.a"}'"""), ("jsonb", "'null'"),
    ("jsonb", "'[1, {\"$ref\": \"x\"}]'"), ("text[]", "array['a,b', null, '\"', '']"), ("int4[]", "'{{1,2},{3,4}}'"),
    ("timestamptz", "'2026-11-14 22:15:31.244383+02'"), ("timestamp", "'infinity'"), ("date", "'0044-03-15 BC'"),
    ("interval", "'1 year -2 days 03:04:05.6'"), ("uuid", "'00000000-0000-0000-0000-00000000000a'"),
    ("inet", "'10.1.0.0/16'"), ("int4range", "'[1,5)'"), ("point", "'(1,2)'"), ("int4", "null"), ("jsonb", "null"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "literal"), EXACT)
def test_a_value_of_any_type_is_passed_on_exactly(service: Service, type_: str, literal: str) -> None:
    value = f"{literal}::{type_}"
    for column in ("v", "0"):
        for encoding in ({}, {"row_format": "array", "big_numbers": "string"}):
            answer = run(
                service,
                f"select {value} as v",
                with_params(
                    f"select ($1::{type_})::text is not distinct from ({value})::text as same",
                    ref(f"0.rows.0.{column}"),
                ),
                **encoding,
            )
            assert answer["results"][1]["rows"] in ([{"same": True}], [[True]])


def test_parent_and_child_rows_in_one_request(service: Service) -> None:
    parent = fresh_table(service, "n serial primary key, name text")
    child = fresh_table(service, f"n int references {parent}, item text")
    answer = run(
        service,
        with_params(f"insert into {parent} (name) values ($1), ($2) returning n, name", "a", "b"),
        with_params(f"insert into {child} values ($1, 'x') returning n", ref("0.rows.1.n")),
        with_params(f"insert into {child} values ($1, $2)", ref("1.rows.0.n"), ref("0.rows.0.name")),
        with_params("select $1::int + $2::int as sum", ref("0.row_count"), ref("2.affected_rows")),
    )
    assert answer["results"][3]["rows"] == [{"sum": 3}]
    second = answer["results"][0]["rows"][1]["n"]
    assert service.query(f"select * from {child} order by item")["rows"] == [
        {"n": second, "item": "a"}, {"n": second, "item": "x"}
    ]  # fmt: skip


def test_columns_are_found_by_the_name_that_the_answer_gives_them_and_then_by_number(service: Service) -> None:
    source = """select 1 as a, 2 as a, 3 as a_1, 4 as "0", 5 as "x.y" """
    (row,) = run(service, source)["results"][0]["rows"]
    assert sorted(row.values()) == [1, 2, 3, 4, 5]
    for column, value in {**row, "1": 2, "2": 3, "04": 5}.items():
        use = with_params("select $1::int as v", ref(f"0.rows.0.{column}"))
        assert last_row(service, source, use) == {"v": value}
    for column, value in {"a": 1, "a_1": 3, "0": 4, "1": 2}.items():
        use = with_params("select $1::int as v", ref(f"0.rows.0.{column}"))
        assert last_row(service, source, use, row_format="array") == [value]


def test_a_row_far_down_and_one_that_was_not_returned(service: Service) -> None:
    many = "select g as n from generate_series(0, 999) g"
    for row in (0, 31, 32, 33, 500, 999):
        assert last_row(service, many, with_params("select $1::int as v", ref(f"0.rows.{row}.n")), max_rows=1) == {
            "v": row
        }


def test_several_references_to_one_cell(service: Service) -> None:
    use = with_params("select $1::int + $2::int + $3::int as v", *[ref("0.rows.0.n")] * 3)
    assert last_row(service, "select 7 as n", use) == {"v": 21}


@pytest.mark.parametrize(
    "path",
    ["0.rows.1.n", "0.rows.0.m", "0.rows.0.1", "0.rows.999999.n", "0.rows.0." + "1" * 5000, "0.rows.0.N", "1.rows.0.n"],
    ids=lambda path: path[:20],
)
def test_an_unreachable_cell_rolls_the_transaction_back(service: Service, path: str) -> None:
    table = fresh_table(service)
    statements: list[Sent] = [
        "select 1 as n",
        f"insert into {table} values (1)",
        with_params("select $1::int", ref(path)),
    ]
    for _ in range(2):
        error = error_of(post(service, *statements), 200, "reference_failed")
        assert (error["statement_index"], error["outcome"]) == (2, "rolled_back")
        assert numbers(service, table) == []


@pytest.mark.parametrize(
    "path",
    ["", "0", "0.", "0.rows", "0.rows.0", "0.rows.0.", "rows.0.n", "-1.rows.0.n", "0.rows.-1.n", "0.rows.x.n",
     "0.row_count.x", " 0.row_count", "0.row_count\n", "0.types.0", "1e1.row_count", "\u0660.row_count", "0.count",
     "#/definitions/a", "0.rows.9999999.n", "123456.row_count"],
)  # fmt: skip
def test_an_invalid_reference_is_rejected_before_anything_runs(service: Service, path: str) -> None:
    response = post(service, "select 1 as n", with_params("select $1::int", ref(path)))
    error = error_of(response, 400, "invalid_reference")
    assert (error["statement_index"], error["outcome"]) == (1, "not_executed")


@pytest.mark.parametrize("path", ["1.rows.0.n", "2.rows.0.n", "1.row_count", "99999.affected_rows"])
def test_a_reference_forward_or_to_itself_is_refused(service: Service, path: str) -> None:
    response = post(service, "select 1 as n", with_params("select $1::int as n", ref(path)), "select 1 as n")
    assert error_of(response, 400, "invalid_reference")["statement_index"] == 1


@pytest.mark.parametrize(
    "value",
    [{"$ref": "0.rows.0.n", "more": 1}, {"a": {"$ref": "0.rows.0.n"}}, [{"$ref": "0.rows.0.n"}], {"$ref": 5},
     {"$ref": None}, {"$ref": {"$ref": "0.rows.0.n"}}, {"$refs": "0.rows.0.n"}, "$ref", '{"$ref": "0.rows.0.n"}'],
    ids=str,
)  # fmt: skip
def test_data_that_contains_a_reference_stays_data(service: Service, value: Any) -> None:
    assert last_row(service, "select 1 as n", with_params("select $1::jsonb as v", value)) == {"v": value}


def test_a_reference_means_nothing_in_a_single_query(service: Service) -> None:
    assert service.value("select $1::jsonb", {"$ref": "0.rows.0.n"}) == {"$ref": "0.rows.0.n"}


SATISFIED: list[tuple[str, dict[str, int]]] = [
    ("update {} set n = n + 10", {"affected_rows": 2}), ("delete from {} where n > 100", {"affected_rows": 0}),
    ("select * from {}", {"row_count": 2}), ("select * from {} where n > 100", {"row_count": 0}),
    ("insert into {} values (3), (4) returning n", {"row_count": 2}),
    ("insert into {} values (3), (4) returning n", {"affected_rows": 2}),
    ("select generate_series(1, 100)", {"row_count": 100}), ("create table {}_x ()", {"affected_rows": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expect"), SATISFIED)
def test_an_expectation_that_holds_commits(service: Service, sql: str, expect: dict[str, int]) -> None:
    table = fresh_table(service)
    service.query(f"insert into {table} values (1), (2)")
    run(service, f"insert into {table} values (90)", f"delete from {table} where n = 90",
        {"sql": sql.format(table), "expect": expect}, f"insert into {table} values (99)", max_rows=1)  # fmt: skip
    assert 99 in numbers(service, table)


@pytest.mark.parametrize(("sql", "expect"), SATISFIED)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_failed_expectation_rolls_everything_back(
    service: Service, sql: str, expect: dict[str, int], position: int
) -> None:
    table = fresh_table(service)
    service.query(f"insert into {table} values (1), (2)")
    (name, holds), *_ = expect.items()
    # Too many is no better than too few.
    wanted = holds - 1 if holds and position else holds + 7
    statements: list[Any] = [f"insert into {table} values (98)", with_params(f"insert into {table} values ($1)", 99)]
    if position:
        statements[0] = f"update {table} set n = n"
    statements.insert(position, {"sql": sql.format(table), "expect": {name: wanted}})
    error = error_of(post(service, *statements), 200, "expectation_failed")
    assert (error["statement_index"], error["outcome"], error["retryable"]) == (position, "rolled_back", False)
    assert str(wanted) in error["message"]
    assert numbers(service, table) == [1, 2]


def test_compare_and_set_lets_one_of_many_through(service: Service) -> None:
    table = fresh_table(service, "n int, version int")
    service.query(f"insert into {table} values (0, 1)")
    change = with_params(
        f"update {table} set n = $1, version = 2 where version = $2", 7, 1, expect={"affected_rows": 1}
    )
    run(service, change)
    error_of(post(service, change), 200, "expectation_failed")
    assert service.query(f"select * from {table}")["rows"] == [{"n": 7, "version": 2}]


def test_many_references_to_a_large_result_delay_no_other_request(service: Service) -> None:
    references = [ref(f"0.rows.{number % 5_000}.n") for number in range(30_000)]
    sql = f"select cardinality(array[{','.join(f'${number + 1}' for number in range(30_000))}]::int[]) as c"
    # The engine reads the parameters once without us; what is left is ours.
    began_s = time.monotonic()
    assert last_row(service, "select 1", with_params(sql, *range(30_000))) == {"c": 30_000}
    unreferenced_s = time.monotonic() - began_s
    began_s = time.monotonic()
    large = "select n from generate_series(0, 9999) n"
    assert last_row(service, large, with_params(sql, *references)) == {"c": 30_000}
    assert time.monotonic() - began_s < 2 * unreferenced_s + 2 + STALL_S


def test_a_failed_expectation_after_a_large_result_is_reported_at_once(service: Service) -> None:
    large = {"sql": "select repeat('x', 100000) as x from generate_series(1, 90)", "expect": {"row_count": 5}}
    began_s = time.monotonic()
    error_of(post(service, large, "select 1"), 200, "expectation_failed")
    assert time.monotonic() - began_s < 5 + STALL_S
