"""Which INSERT statements are folded into few, and into what."""

from typing import Any

import pytest

from plainsql.folding import folded, insert_template

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sql", "two_rows"),
    [
        ("insert into t values ($1, $2)", "insert into t values ($1, $2), ($3, $4)"),
        ("insert into t (a) values (lower($1)) ;", "insert into t (a) values (lower($1)), (lower($2)) "),
        (
            "INSERT INTO t (a, b) VALUES ($1::FLOAT(53), $2::TIMESTAMP WITH TIME ZONE)",
            "INSERT INTO t (a, b) VALUES ($1::FLOAT(53), $2::TIMESTAMP WITH TIME ZONE), "
            "($3::FLOAT(53), $4::TIMESTAMP WITH TIME ZONE)",
        ),
        ("insert into t values ($2, $1, $2)", "insert into t values ($2, $1, $2), ($4, $3, $4)"),
        ("insert into t values (';)', $1, $$($9$$)", "insert into t values (';)', $1, $$($9$$), (';)', $2, $$($9$$)"),
        (
            'insert into "values (" values ($1) on conflict do nothing',
            'insert into "values (" values ($1), ($2) on conflict do nothing',
        ),
    ],
)
def test_a_row_is_repeated_with_other_numbers(sql: str, two_rows: str) -> None:
    template = insert_template(sql)
    assert template is not None
    assert template.text(2) == two_rows


@pytest.mark.parametrize(
    "sql",
    [
        "insert into t values ($1) returning id", "insert into t values ($1), ($2)", "insert into t select $1",
        "insert into t values ((select max(id) from t), $1)", "insert into t values (next_number(5), $1)",
        "insert into t (a) values ($1) on conflict (a) do update set b = $2", "update t set a = $1",
        "insert into t values ($1) on conflict (a) do update set b = (select max(b) from t)",
        "insert into t values ($1) on conflict (a) do update set b = next_number(t.b)",
        "insert into t values ($1) on conflict (a) do update set b = 1 where (table u) > 1",
        "with x as (select 1) insert into t values ($1)", "insert into t default values",
    ],
)  # fmt: skip
def test_what_could_make_a_difference_is_not_folded(sql: str) -> None:
    assert insert_template(sql) is None


@pytest.mark.parametrize(
    "after",
    ["(lower(a)) do update set b = coalesce(excluded.b, t.b)", "on constraint x do nothing", "do nothing"],
)
def test_an_upsert_with_known_calls_is_folded(after: str) -> None:
    assert insert_template(f"insert into t values ($1) on conflict {after}") is not None


@pytest.mark.parametrize("value", ["x" * 100_000, "ä" * 50_000, b"x" * 50_000, {"a": ["x" * 100_000]}])
def test_a_statement_does_not_grow_with_its_values(value: Any) -> None:
    sql = "insert into t values ($1, $2)"
    template = insert_template(sql)
    assert template is not None
    rows = [[at, value] for at in range(12)]
    statements = list(folded(sql, template, rows, 4_000))
    assert [len(params) // 2 for _, params in statements] == [5, 5, 2]
    assert [value for _, params in statements for value in params] == [value for row in rows for value in row]
    assert list(folded(sql, template, [[1, "x" * (1 << 20)]] * 2, 4_000)) == [(sql, [1, "x" * (1 << 20)])] * 2


def test_any_number_of_rows_is_few_statements_within_the_limits() -> None:
    sql = "insert into t values ($1, $2, $3)"
    template = insert_template(sql)
    assert template is not None
    rows = [[at, at, at] for at in range(100_000)]
    statements = list(folded(sql, template, rows, 4_000))
    assert [value for _, params in statements for value in params] == [value for row in rows for value in row]
    assert len(statements) <= 51
    assert max(len(params) for _, params in statements) <= 65_535
    assert max(len(text) for text, _ in statements) < 1 << 20
