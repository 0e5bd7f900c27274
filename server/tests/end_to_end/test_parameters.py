"""The contract's rules for parameters, over HTTPS: what JSON may stand for what, decided by the engine's type."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from server.tests.service import Service


def send(service: Service, sql: str, raw_params: str) -> httpx.Response:
    """POST /v1/query with `params` as JSON text, so that nothing rewrites its digits."""
    content = f'{{"sql": {json.dumps(sql)}, "row_format": "array", "params": {raw_params}}}'
    return service.call("POST", "/v1/query", content=content.encode(), headers={"Content-Type": "application/json"})


def rows_of(response: httpx.Response) -> str:
    """The JSON text of the rows."""
    _, opening, rest = response.text.partition('"rows":')
    rows, closing, _ = rest.rpartition(',"row_count":')
    assert opening, response.text
    assert closing, response.text
    return rows


ACCEPTED = [
    # SQL, parameters, rows: all exactly as they stand in the JSON
    ("select $1::text is null", "[null]", "[[true]]"),
    # JSON null is SQL NULL for a json parameter, too; JSON's own null is a string away.
    ("select $1::jsonb is null, $1::json is null", "[null]", "[[true,true]]"),
    ("select $1::text::jsonb is null, $1::text::jsonb", '["null"]', "[[false,null]]"),
    ("select $1::bool, $2::bool, $3::text", "[true, false, true]", '[[true,false,"true"]]'),
    ("select $1::int4 + 1", "[41]", "[[42]]"),
    ("select $1::int8", "[-9223372036854775808]", "[[-9223372036854775808]]"),
    ("select $1::numeric", "[1.5000]", "[[1.5000]]"),
    ("select $1::numeric", "[-12.5e3]", "[[-12500]]"),
    ("select $1::float8", "[1E-5]", "[[1e-05]]"),
    ("select $1::text, $2::text, $3::text", "[1.50, 1e5, -0]", '[["1.50","1e5","-0"]]'),
    ("select $1::jsonb, $2::json", "[1.500, 1.500E+01]", "[[1.500,1.500E+01]]"),
    ("select $1::int4, $2::numeric, $3::bool, $4::date", '["7", "1.50", "yes", "2026-11-14"]',
     '[[7,1.50,true,"2026-11-14"]]'),
    ("select $1::timestamptz", '["2026-11-14T23:15:31.5+01:00"]', '[["2026-11-14T22:15:31.5Z"]]'),
    ("select $1::interval", '["1 day 2 hours"]', '[["P1DT2H"]]'),
    ("select $1::text", r'["\u0041\ud83d\ude00\/\"\\\n"]', '[["A😀/\\"\\\\\\n"]]'),
    ("select $1::text", '["$1; drop table x --"]', '[["$1; drop table x --"]]'),
    ("select $1", '["untyped"]', '[["untyped"]]'),
    ("select $2::text, $1::text, $2::text", '["a", "b"]', '[["b","a","b"]]'),
    # JSON for json and jsonb is that JSON; a string is a JSON string and is not parsed again.
    ("select $1::jsonb, jsonb_typeof($1)", r'["{\"a\":1}"]', r'[["{\"a\":1}","string"]]'),
    ("select $1::json", '["text"]', '[["text"]]'),
    ("select $1::json", '[ {"b" : [1,  2] ,"a":null} ]', '[[{"b" : [1,  2] ,"a":null}]]'),
    ("select $1::jsonb", '[{"b": [1, {"c": []}], "a": null}]', '[[{"a": null, "b": [1, {"c": []}]}]]'),
    ("select $1::jsonb, $2::jsonb", "[true, []]", "[[true,[]]]"),
    ("select $1::jsonb -> 'a' ->> 'b'", '[{"a": {"b": "c"}}]', '[["c"]]'),
    # Arrays.
    ("select $1::int4[]", "[[]]", "[[[]]]"),
    ("select $1::int4[]", "[ [ 1 , null , 3 ] ]", "[[[1,null,3]]]"),
    ("select $1::int4[]", '[["1", 2]]', "[[[1,2]]]"),
    ("select $1::int4[]", "[[[1, 2], [3, null]]]", "[[[[1,2],[3,null]]]]"),
    ("select $1::int4[]", '["{1,2}"]', "[[[1,2]]]"),
    ("select $1::int4[]", "[null]", "[[null]]"),
    ("select $1::bool[], $2::numeric[]", "[[true, null], [1.50, 1e2]]", "[[[true,null],[1.50,100]]]"),
    ("select $1::text[]", r'[["a\"b", "c\\d", "e,f", "NULL", null, "", "{x}", " ", "\n", "😀"]]',
     r'[[["a\"b","c\\d","e,f","NULL",null,"","{x}"," ","\n","😀"]]]'),
    ("select $1::text[]", "[[1.50, true]]", '[[["1.50","true"]]]'),
    ("select $1::jsonb[]", '[[{"a": "b\\"c"}, [1, [2]], "x", 1.50, null]]',
     '[[[{"a": "b\\"c"},[1, [2]],"x",1.50,null]]]'),
    ("select cardinality($1::jsonb[])", "[[[1, 2], [3]]]", "[[2]]"),
    ("select 5 = any($1)", "[[1, 5]]", "[[true]]"),
    ("select * from unnest($1::int4[], $2::text[])", '[[1, 2], ["a", null]]', '[[1,"a"],[2,null]]'),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "params", "rows"), ACCEPTED)
def test_a_parameter_is_converted_from_json_to_the_expected_type(
    service: Service, sql: str, params: str, rows: str
) -> None:
    assert rows_of(send(service, sql, params)) == rows


REFUSED = [
    # SQL, parameters, status, code, message
    ("select $1::text", "[[1]]", 400, "invalid_parameter",
     "Parameter $1 is an array, but the statement expects text."),
    ("select $1::text, $2::int4", '["a", {"b": 1}]', 400, "invalid_parameter",
     "Parameter $2 is an object, but the statement expects int4."),
    ("select $1::point", "[[1, 2]]", 400, "invalid_parameter",
     "Parameter $1 is an array, but the statement expects point."),
    ("select $1::text[]", '[{"a": 1}]', 400, "invalid_parameter",
     "Parameter $1 is an object, but the statement expects text[]."),
    ("select $1::text[]", '[["a", {"b": 1}]]', 400, "invalid_parameter",
     "Parameter $1 is an object, but the statement expects text."),
    ("select 1", "[1]", 400, "wrong_parameter_count",
     "The statement expects 0 parameters; the request has 1 parameter."),
    ("select $1::int4, $2::int4", "[1]", 400, "wrong_parameter_count",
     "The statement expects 2 parameters; the request has 1 parameter."),
    ("select $1::int4", "[1, 2]", 400, "wrong_parameter_count",
     "The statement expects 1 parameter; the request has 2 parameters."),
    ("select $1::int4 + $2::int4", "[]", 400, "wrong_parameter_count",
     "The statement expects parameters; the request has none."),
    ("select $1::text", r'["a\u0000b"]', 400, "null_character",
     "Parameter $1 contains a NUL character, which PostgreSQL can't store in text."),
    ("select $1::text[]", r'[["a", "\u0000"]]', 400, "null_character",
     "Parameter $1 contains a NUL character, which PostgreSQL can't store in text."),
    ("select 'a\0b'", "[]", 400, "null_character",
     "The SQL text contains a NUL character, which PostgreSQL doesn't accept."),
    # What only the engine can judge is the engine's error.
    ("select $1::jsonb", r'[{"a": "\u0000"}]', 200, "untranslatable_character", "unsupported Unicode escape sequence"),
    ("select $1::int4", "[1.0]", 200, "invalid_text_representation", 'invalid input syntax for type integer: "1.0"'),
    ("select $1::int4", '["x"]', 200, "invalid_text_representation", 'invalid input syntax for type integer: "x"'),
    ("select $1::int2", "[32768]", 200, "numeric_value_out_of_range",
     'value "32768" is out of range for type smallint'),
    ("select $1::int4[]", "[[[1], [2, 3]]]", 200, "invalid_text_representation",
     'malformed array literal: "{{"1"},{"2","3"}}"'),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "params", "expected"), [(sql, params, rest) for sql, params, *rest in REFUSED])
def test_a_parameter_that_does_not_fit_its_type_is_rejected(
    service: Service, sql: str, params: str, expected: list[Any]
) -> None:
    response = send(service, sql, params)
    error = response.json()["error"]
    assert [response.status_code, error["code"], error["message"]] == expected


def test_a_statement_with_placeholders_needs_parameters_on_both_routes(service: Service) -> None:
    for response in (service.post_query("select $1::int4"), service.post_text("select $1::int4")):
        assert (response.status_code, response.json()["error"]["code"]) == (400, "wrong_parameter_count")


def test_null_characters_escaped_in_json_are_kept_by_json_which_stores_the_text_as_it_is(service: Service) -> None:
    assert rows_of(send(service, "select $1::json", r'[{"a": "\u0000"}]')) == r'[[{"a": "\u0000"}]]'


MALFORMED = [
    '["\x00"]',
    '["a\nb"]',
    r'["\ud800"]',
    r'["\udc00"]',
    r'["\x41"]',
    "[01]",
    "[1.]",
    "[NaN]",
    "[+1]",
    "1",
    '{"a": 1}',
]


@pytest.mark.parametrize("params", MALFORMED)
@pytest.mark.parametrize("type_", ["text", "jsonb"])
def test_parameters_that_are_not_json_are_refused_before_the_engine_sees_them(
    service: Service, params: str, type_: str
) -> None:
    response = send(service, f"select $1::{type_}", params)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "malformed_request")


@pytest.mark.parametrize("depth", [7, 500, 900])
def test_arrays_with_more_dimensions_than_the_engine_has_are_refused(service: Service, depth: int) -> None:
    response = send(service, "select $1::int4[]", "[" + "[" * depth + "1" + "]" * depth + "]")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_parameter")


@pytest.mark.parametrize("depth", [100, 500])
def test_json_nested_deeply_passes_through_a_jsonb_parameter(service: Service, depth: int) -> None:
    nested = '{"a": [' * (depth // 2) + "]}" * (depth // 2)
    assert rows_of(send(service, "select $1::jsonb", f"[{nested}]")) == f"[[{nested}]]"


def test_parameters_write_rows_of_every_shape(service: Service) -> None:
    service.query("create table parameters_rows (id int8 primary key, tags text[], data jsonb, at timestamptz)")
    sent: list[Any] = [9223372036854775807, ["a", None], {"b": [1, None]}, "2026-11-14T22:15:31.244383Z"]
    insert = "insert into parameters_rows values ($1, $2, $3, $4) returning *"
    assert service.query(insert, *sent, row_format="array")["rows"] == [sent]
    assert service.query("select * from parameters_rows where id = $1", sent[0], row_format="array")["rows"] == [sent]
    service.query("drop table parameters_rows")


def test_hundreds_of_different_statements_with_parameters_keep_working(service: Service) -> None:
    # More than one connection keeps prepared, so that the oldest ones are closed and prepared again.
    for number in [*range(120), *range(3)]:
        assert service.value(f"select $1::int4 + {number}", 1) == number + 1


def test_a_type_recreated_under_the_same_name_is_used_on_every_connection(service: Service) -> None:
    def run_at_once() -> list[Any]:
        with ThreadPoolExecutor(3) as threads:
            return list(
                threads.map(lambda _: service.value("select $1::parameters_mood from pg_sleep(0.2)", "b"), range(3))
            )

    service.query("create type parameters_mood as enum ('a', 'b')")
    assert run_at_once() == ["b"] * 3
    service.query("drop type parameters_mood")
    service.query("create type parameters_mood as enum ('b', 'c')")
    assert run_at_once() == ["b"] * 3
    service.query("drop type parameters_mood")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_table_that_changes_between_two_calls_of_one_statement_is_read_as_it_is_now(
    service: Service, read_only: bool
) -> None:
    service.query("create table parameters_changing (a int4)")
    service.query("insert into parameters_changing values (1)")
    sql = "select * from parameters_changing where a = $1"

    def read_at_once() -> list[Any]:
        with ThreadPoolExecutor(3) as threads:
            slow = f"{sql} and pg_sleep(0.2) is not null"
            return list(threads.map(lambda _: service.query(slow, 1, read_only=read_only)["rows"], range(3)))

    assert read_at_once() == [[{"a": 1}]] * 3
    service.query("alter table parameters_changing add b text default 'new'")
    assert read_at_once() == [[{"a": 1, "b": "new"}]] * 3
    service.query("drop table parameters_changing")
