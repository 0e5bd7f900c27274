"""Rows of real results, put together as JSON; and the renaming of columns."""

import json

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.engine.encoding.rows import RowRenderer, distinct_names

NAMES = [
    ([], []),
    (["a"], ["a"]),
    (["a", "a"], ["a", "a_1"]),
    (["a", "a", "a"], ["a", "a_1", "a_2"]),
    (["a", "a", "a_1"], ["a", "a_2", "a_1"]),
    (["a_1", "a", "a"], ["a_1", "a", "a_2"]),
    (["a", "a", "a_1", "a_1"], ["a", "a_2", "a_1", "a_1_1"]),
    (["a", "b", "a", "b"], ["a", "b", "a_1", "b_1"]),
    (["", ""], ["", "_1"]),
]


@pytest.mark.parametrize(("names", "expected"), NAMES)
def test_later_twins_are_numbered_past_names_that_are_taken(names: list[str], expected: list[str]) -> None:
    assert distinct_names(names) == expected


@given(names=st.lists(st.sampled_from(["a", "a_1", "a_2", "a_1_1", "b", "b_1"]), max_size=12))
def test_names_become_distinct_and_the_first_of_a_name_keeps_it(names: list[str]) -> None:
    distinct = distinct_names(names)
    assert len(set(distinct)) == len(distinct) == len(names)
    for index, name in enumerate(names):
        assert distinct[index] == name if name not in names[:index] else distinct[index].startswith(f"{name}_")


def render(engine: psycopg.Connection, sql: str, names: list[str] | None, columns: int) -> list[bytes]:
    return RowRenderer(names, [None] * columns).render(engine.pgconn.exec_(sql.encode()))


def test_rows_are_objects_where_there_are_names(engine: psycopg.Connection) -> None:
    assert render(engine, "values (1, 2), (3, null)", ["a", "b"], 2) == [b'{"a":1,"b":2}', b'{"a":3,"b":null}']


def test_rows_are_arrays_where_there_are_none(engine: psycopg.Connection) -> None:
    assert render(engine, "values (1, 2), (3, null)", None, 2) == [b"[1,2]", b"[3,null]"]


def test_rows_without_columns_are_empty_objects_and_arrays(engine: psycopg.Connection) -> None:
    assert render(engine, "select from generate_series(1, 2)", [], 0) == [b"{}", b"{}"]
    assert render(engine, "select from generate_series(1, 2)", None, 0) == [b"[]", b"[]"]


def test_each_value_goes_through_its_columns_encoder_and_null_through_none(engine: psycopg.Connection) -> None:
    renderer = RowRenderer(["a", "b"], [lambda value: b'"<' + value + b'>"', None])
    assert renderer.render(engine.pgconn.exec_(b"values (1, 2), (null, 3)")) == [
        b'{"a":"<1>","b":2}', b'{"a":null,"b":3}',
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["100%", "%s", "%b", "%(a)b", "%%", 'a"b\\c', "line\nbreak", "😀", ""])
def test_no_name_can_break_the_object(engine: psycopg.Connection, name: str) -> None:
    assert [json.loads(row) for row in render(engine, "select 1", [name], 1)] == [{name: 1}]
