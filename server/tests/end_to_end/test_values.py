"""The contract's table of values, over HTTPS and in both directions.

Each row of a table says: this type, written like this in SQL, is exactly this JSON; and the same JSON, sent as a
parameter of that type, comes back as the same JSON. Answers are compared as raw text, so that no JSON parser can
hide a lost digit.
"""

import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service

# Types that these tests make for themselves.
_OWN_TYPES = {
    "values_mood": "create type values_mood as enum ('sad', 'so so', 'very \"happy\"')",
    "values_pair": "create type values_pair as (number int, word text)",
    "values_positive": "create domain values_positive as int check (value > 0)",
    "values_small": "create domain values_small as values_positive check (value < 100)",
    "values_amount": "create domain values_amount as numeric(30, 2)",
    "values_list": "create domain values_list as int[]",
    "values_floats": "create type values_floats as range (subtype = float8)",
    "int4_of_mine": "create type values_schema.int4 as enum ('one', 'two')",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def own_types(service: Service) -> Iterator[None]:
    service.query("create schema values_schema")
    for statement in _OWN_TYPES.values():
        service.query(statement)
    yield
    service.query("drop schema values_schema cascade")
    for name in ("values_small", "values_positive", "values_amount", "values_list"):
        service.query(f"drop domain {name}")
    for name in ("values_mood", "values_pair", "values_floats"):
        service.query(f"drop type {name}")


def ask(service: Service, sql: str, *raw_params: str, **fields: str) -> httpx.Response:
    """POST /v1/query with parameters that are JSON text already, so that nothing rewrites their digits."""
    body = {"sql": sql, "row_format": "array", **fields}
    content = json.dumps(body)[:-1] + ', "params": [' + ",".join(raw_params) + "]}"
    return service.call("POST", "/v1/query", content=content.encode(), headers={"Content-Type": "application/json"})


def only_value(response: httpx.Response) -> str:
    """The JSON text of the only value of the only row."""
    _, opening, rest = response.text.partition('"rows":[[')
    value, closing, _ = rest.rpartition(']],"row_count":1,')
    assert opening, response.text
    assert closing, response.text
    return value


def only_type(response: httpx.Response) -> str:
    """The engine's name of the only column's type."""
    (name,) = response.json()["types"]
    return str(name)


def both_ways(service: Service, sql_type: str, literal: str, type_name: str, expected: str) -> None:
    """The value goes out as expected; sent as a parameter, it comes out as expected again."""
    out = ask(service, f"select {literal}::{sql_type}")
    assert (only_type(out), only_value(out)) == (type_name, expected)
    back = ask(service, f"select $1::{sql_type}", expected)
    assert (only_type(back), only_value(back)) == (type_name, expected)


NUMBERS = [
    # SQL type, SQL literal, name in `types`, JSON
    ("bool", "true", "bool", "true"),
    ("bool", "false", "bool", "false"),
    ("int2", "'-32768'", "int2", "-32768"),
    ("int2", "'32767'", "int2", "32767"),
    ("int4", "'-2147483648'", "int4", "-2147483648"),
    ("int4", "'2147483647'", "int4", "2147483647"),
    ("oid", "'4294967295'", "oid", "4294967295"),
    ("int8", "'9223372036854775807'", "int8", "9223372036854775807"),
    ("int8", "'-9223372036854775808'", "int8", "-9223372036854775808"),
    ("int8", "0", "int8", "0"),
    ("numeric", "1.50", "numeric", "1.50"),
    ("numeric", "'-0.000000000000000000000000000001'", "numeric", "-0.000000000000000000000000000001"),
    ("numeric", "1e40", "numeric", "1" + "0" * 40),
    ("numeric(6,2)", "12.3", "numeric", "12.30"),
    ("numeric", "'NaN'", "numeric", '"NaN"'),
    ("numeric", "'Infinity'", "numeric", '"Infinity"'),
    ("numeric", "'-Infinity'", "numeric", '"-Infinity"'),
    ("float4", "1.1", "float4", "1.1"),
    ("float4", "'3.4028235e38'", "float4", "3.4028235e+38"),
    ("float4", "'1e-45'", "float4", "1e-45"),
    ("float4", "'NaN'", "float4", '"NaN"'),
    ("float4", "'Infinity'", "float4", '"Infinity"'),
    ("float4", "'-Infinity'", "float4", '"-Infinity"'),
    ("float8", "0.1", "float8", "0.1"),
    ("float8", "'0.30000000000000004'", "float8", "0.30000000000000004"),
    ("float8", "'1e308'", "float8", "1e+308"),
    ("float8", "'1.7976931348623157e308'", "float8", "1.7976931348623157e+308"),
    ("float8", "'5e-324'", "float8", "5e-324"),
    ("float8", "'-0'", "float8", "-0"),
    ("float8", "'NaN'", "float8", '"NaN"'),
    ("float8", "'Infinity'", "float8", '"Infinity"'),
    ("float8", "'-Infinity'", "float8", '"-Infinity"'),
]  # fmt: skip

TEXTS = [
    ("money", "'1234.5'", "money", '"$1,234.50"'),
    ("text", "''", "text", '""'),
    ("text", "'null'", "text", '"null"'),
    ("text", "'true'", "text", '"true"'),
    ("text", "'12'", "text", '"12"'),
    ("text", """'a "quoted" \\ back/slash'""", "text", r'"a \"quoted\" \\ back/slash"'),
    ("text", r"E'\t\n\r\b\f\x01\x1f\x7f'", "text", '"\\t\\n\\r\\b\\f\\u0001\\u001f\x7f"'),
    ("text", "'grün 漢字 😀 👩‍👩‍👧‍👦 𐍈'", "text", '"grün 漢字 😀 👩‍👩‍👧‍👦 𐍈"'),
    ("text", "'שלום עולם مرحبا \u202eabc\u202c'", "text", '"שלום עולם مرحبا \u202eabc\u202c"'),
    ("text", "'\u2028\u2029\ufeff\U0010ffff'", "text", '"\u2028\u2029\ufeff\U0010ffff"'),
    ("text", "'50% %s %(a)s {}'", "text", '"50% %s %(a)s {}"'),
    ("varchar(5)", "'abc'", "varchar", '"abc"'),
    ("char(5)", "'abc'", "bpchar", '"abc  "'),
    ('"char"', "'a'", "char", '"a"'),
    ("name", "'a name'", "name", '"a name"'),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "uuid", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("inet", "'192.168.0.1/24'", "inet", '"192.168.0.1/24"'),
    ("inet", "'::1'", "inet", '"::1"'),
    ("cidr", "'10.0.0.0/8'", "cidr", '"10.0.0.0/8"'),
    ("macaddr", "'08-00-2B-01-02-03'", "macaddr", '"08:00:2b:01:02:03"'),
    ("macaddr8", "'08:00:2b:01:02:03:04:05'", "macaddr8", '"08:00:2b:01:02:03:04:05"'),
    ("bit(4)", "'1010'", "bit", '"1010"'),
    ("varbit", "'101'", "varbit", '"101"'),
    ("jsonpath", "'$.a[*] ? (@ > 1)'", "jsonpath", r'"$.\"a\"[*]?(@ > 1)"'),
    ("int4range", "'[1,5]'", "int4range", '"[1,6)"'),
    ("int8range", "'empty'", "int8range", '"empty"'),
    ("numrange", "'(,1.5]'", "numrange", '"(,1.5]"'),
    ("tsrange", "'[2026-01-01,)'", "tsrange", r'"[\"2026-01-01 00:00:00\",)"'),
    ("tstzrange", "'[2026-01-01,2026-02-01)'", "tstzrange",
     r'"[\"2026-01-01 00:00:00+00\",\"2026-02-01 00:00:00+00\")"'),
    ("daterange", "'[2026-01-01,2026-01-31]'", "daterange", '"[2026-01-01,2026-02-01)"'),
    ("int4multirange", "'{[1,3),[5,8)}'", "int4multirange", '"{[1,3),[5,8)}"'),
    ("values_floats", "'[1.5,2.5]'", "values_floats", '"[1.5,2.5]"'),
    ("point", "'(1,2.5)'", "point", '"(1,2.5)"'),
    ("line", "'{1,-1,0}'", "line", '"{1,-1,0}"'),
    ("lseg", "'[(0,0),(1,1)]'", "lseg", '"[(0,0),(1,1)]"'),
    ("box", "'(0,0),(1,1)'", "box", '"(1,1),(0,0)"'),
    ("path", "'((0,0),(1,1))'", "path", '"((0,0),(1,1))"'),
    ("path", "'[(0,0),(1,1)]'", "path", '"[(0,0),(1,1)]"'),
    ("polygon", "'((0,0),(1,1),(1,0))'", "polygon", '"((0,0),(1,1),(1,0))"'),
    ("circle", "'<(0,0),1>'", "circle", '"<(0,0),1>"'),
    ("tsvector", "'a:1 b:2'", "tsvector", "\"'a':1 'b':2\""),
    ("tsquery", "'a & !b'", "tsquery", "\"'a' & !'b'\""),
    ("pg_lsn", "'16/B374D848'", "pg_lsn", '"16/B374D848"'),
    ("xid", "'7'", "xid", '"7"'),
    ("xid8", "'18446744073709551615'", "xid8", '"18446744073709551615"'),
    ("tid", "'(0,1)'", "tid", '"(0,1)"'),
    ("pg_snapshot", "'10:20:10,14,15'", "pg_snapshot", '"10:20:10,14,15"'),
    ("regclass", "'pg_class'", "regclass", '"pg_class"'),
    ("regtype", "'int4'", "regtype", '"integer"'),
    ("regproc", "'now'", "regproc", '"now"'),
    ("int2vector", "'1 2 3'", "int2vector", '"1 2 3"'),
    ("oidvector", "'1 2 3'", "oidvector", '"1 2 3"'),
    ("values_mood", "'so so'", "values_mood", '"so so"'),
    ("values_schema.int4", "'one'", "int4", '"one"'),
    ("values_pair", "row(1, 'a \"b\", c')", "values_pair", r'"(1,\"a \"\"b\"\", c\")"'),
    ("values_pair", "row(null, null)", "values_pair", '"(,)"'),
]  # fmt: skip

TIMES = [
    ("date", "'2026-11-14'", "date", '"2026-11-14"'),
    ("date", "'0044-03-15 BC'", "date", '"0044-03-15 BC"'),
    ("date", "'12345-01-02'", "date", '"12345-01-02"'),
    ("date", "'infinity'", "date", '"infinity"'),
    ("date", "'-infinity'", "date", '"-infinity"'),
    ("time", "'12:34:56.5'", "time", '"12:34:56.5"'),
    ("time", "'24:00'", "time", '"24:00:00"'),
    ("timetz", "'12:34:56+05:30'", "timetz", '"12:34:56+05:30"'),
    ("timestamp", "'2026-11-14 22:15:31.244383'", "timestamp", '"2026-11-14T22:15:31.244383"'),
    ("timestamp", "'2026-11-14'", "timestamp", '"2026-11-14T00:00:00"'),
    ("timestamp", "'0044-03-15 12:00 BC'", "timestamp", '"0044-03-15T12:00:00 BC"'),
    ("timestamp", "'12345-03-15 12:00'", "timestamp", '"12345-03-15T12:00:00"'),
    ("timestamp", "'infinity'", "timestamp", '"infinity"'),
    ("timestamp", "'-infinity'", "timestamp", '"-infinity"'),
    ("timestamptz", "'2026-11-14 23:15:31.244383+01'", "timestamptz", '"2026-11-14T22:15:31.244383Z"'),
    ("timestamptz", "'2026-11-14 22:15:31.1'", "timestamptz", '"2026-11-14T22:15:31.1Z"'),
    ("timestamptz", "'0044-03-15 12:00 BC'", "timestamptz", '"0044-03-15T12:00:00Z BC"'),
    ("timestamptz", "'12345-03-15 12:00'", "timestamptz", '"12345-03-15T12:00:00Z"'),
    ("timestamptz", "'infinity'", "timestamptz", '"infinity"'),
    ("timestamptz", "'-infinity'", "timestamptz", '"-infinity"'),
    ("interval", "'1 year 2 mons -3 days 04:05:06.7'", "interval", '"P1Y2M-3DT4H5M6.7S"'),
    ("interval", "'-1 day -00:00:00.5'", "interval", '"P-1DT-0.5S"'),
    ("interval", "'0'", "interval", '"PT0S"'),
]  # fmt: skip

JSONS = [
    ("json", """'{"b":1,  "a":[1.50,null,true]}'""", "json", '{"b":1,  "a":[1.50,null,true]}'),
    ("json", "'\"text\"'", "json", '"text"'),
    ("json", "'1.500'", "json", "1.500"),
    ("json", "'{\"a\":1,\"a\":2}'", "json", '{"a":1,"a":2}'),
    ("jsonb", """'{"b":1,  "a":[1.50,null,true]}'""", "jsonb", '{"a": [1.50, null, true], "b": 1}'),
    ("jsonb", "'\"grün 😀 \\u0001\"'", "jsonb", '"grün 😀 \\u0001"'),
    ("jsonb", "'{}'", "jsonb", "{}"),
    ("jsonb", "'[]'", "jsonb", "[]"),
    ("jsonb", "'false'", "jsonb", "false"),
    ("jsonb", "'12345678901234567890.123456789'", "jsonb", "12345678901234567890.123456789"),
    ("jsonb", f"'{'[' * 100}{']' * 100}'", "jsonb", "[" * 100 + "]" * 100),
    ("jsonb", f"""'{'{"a": ' * 100}1{"}" * 100}'""", "jsonb", '{"a": ' * 100 + "1" + "}" * 100),
]  # fmt: skip

ARRAYS = [
    ("int4[]", "'{}'", "int4[]", "[]"),
    ("int4[]", "'{1,NULL,-3}'", "int4[]", "[1,null,-3]"),
    ("int4[]", "'{{1,2},{3,NULL}}'", "int4[]", "[[1,2],[3,null]]"),
    ("int4[]", "'{{{1},{2}},{{3},{4}}}'", "int4[]", "[[[1],[2]],[[3],[4]]]"),
    ("int4[]", "'{{{{{{1}}}}}}'", "int4[]", "[[[[[[1]]]]]]"),
    ("int4[]", "'[0:1]={1,2}'", "int4[]", "[1,2]"),
    ("int4[]", "'[-2:-1][5:6]={{1,2},{3,4}}'", "int4[]", "[[1,2],[3,4]]"),
    ("int8[]", "'{9223372036854775807}'", "int8[]", "[9223372036854775807]"),
    ("bool[]", "'{t,f,NULL}'", "bool[]", "[true,false,null]"),
    ("numeric[]", "'{NaN,1.50,Infinity}'", "numeric[]", '["NaN",1.50,"Infinity"]'),
    ("float8[]", "'{NaN,1e308,-Infinity,-0}'", "float8[]", '["NaN",1e+308,"-Infinity",-0]'),
    ("text[]", "array['']", "text[]", '[""]'),
    ("text[]", "array['NULL', null, 'null', 'Null']", "text[]", '["NULL",null,"null","Null"]'),
    ("text[]", """array['a"b', 'c\\d', '\\"', '\\\\']""", "text[]", r'["a\"b","c\\d","\\\"","\\\\"]'),
    ("text[]", "array['a,b', '{x}', '}', ' s ', E'\\n\\t', '[1:2]={}']", "text[]",
     r'["a,b","{x}","}"," s ","\n\t","[1:2]={}"]'),
    ("text[]", "array[array['a', 'b'], array['c', null]]", "text[]", '[["a","b"],["c",null]]'),
    ("text[]", "array['grün 😀', 'שלום']", "text[]", '["grün 😀","שלום"]'),
    ("varchar(3)[]", "array['abc']", "varchar[]", '["abc"]'),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", "uuid[]", '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]'),
    ("date[]", "'{2026-11-14,infinity}'", "date[]", '["2026-11-14","infinity"]'),
    ("timestamptz[]", "array['2026-11-14 23:15:31+01', null]", "timestamptz[]", '["2026-11-14T22:15:31Z",null]'),
    ("timestamp[]", "'{{2026-11-14},{infinity}}'", "timestamp[]", '[["2026-11-14T00:00:00"],["infinity"]]'),
    ("interval[]", "'{1 day}'", "interval[]", '["P1D"]'),
    ("int4range[]", "array['[1,5)', 'empty']", "int4range[]", '["[1,5)","empty"]'),
    ("point[]", "array['(1,2)', '(3,4)']", "point[]", '["(1,2)","(3,4)"]'),
    # Only box separates the elements of its arrays with semicolons.
    ("box[]", "'{(1,1),(0,0);NULL;(3,3),(2,2)}'", "box[]", '["(1,1),(0,0)",null,"(3,3),(2,2)"]'),
    ("box[]", "'{{(1,1),(0,0)};{(3,3),(2,2)}}'", "box[]", '[["(1,1),(0,0)"],["(3,3),(2,2)"]]'),
    ("regclass[]", "array['pg_class']", "regclass[]", '["pg_class"]'),
    ("int2vector[]", "array['1 2', '3']", "int2vector[]", '["1 2","3"]'),
    ("jsonb[]", """array['{"a":[1]}', '"x\\"y"', '[1,[2]]', null]""", "jsonb[]", r'[{"a": [1]},"x\"y",[1, [2]],null]'),
    ("json[]", """array['{"a" :1}', '"NULL"']""", "json[]", '[{"a" :1},"NULL"]'),
    ("values_mood[]", """array['very "happy"', null, 'sad']""", "values_mood[]", r'["very \"happy\"",null,"sad"]'),
    ("values_pair[]", "array[row(1, 'a b'), null]", "values_pair[]", r'["(1,\"a b\")",null]'),
    ("values_small[]", "array[1, 99]", "values_small[]", "[1,99]"),
    ("values_amount[]", "array[1.5, null]", "values_amount[]", "[1.50,null]"),
    ("values_list[]", "array['{1,2}', '{}', '{3}']", "values_list[]", "[[1,2],[],[3]]"),
]  # fmt: skip

# The engine itself says which type a domain stands for: `types` has the base type's name.
DOMAINS = [
    ("values_positive", "7", "int4", "7"),
    ("values_small", "99", "int4", "99"),
    ("values_amount", "'1234567890123456789012345678.9'", "numeric", "1234567890123456789012345678.90"),
    ("values_list", "'{1,NULL}'", "int4[]", "[1,null]"),
    ("values_list", "'{{1,2},{3,4}}'", "int4[]", "[[1,2],[3,4]]"),
]  # fmt: skip

TABLE = NUMBERS + TEXTS + TIMES + JSONS + ARRAYS + DOMAINS


@pytest.mark.parametrize(
    ("sql_type", "literal", "type_name", "expected"),
    TABLE,
    ids=lambda field: field[:30],
)
def test_a_value_survives_a_round_trip_in_the_documented_format(
    service: Service, sql_type: str, literal: str, type_name: str, expected: str
) -> None:
    both_ways(service, sql_type, literal, type_name, expected)


def test_the_table_has_more_than_forty_engine_types() -> None:
    assert len({type_name for _, _, type_name, _ in TABLE if not type_name.endswith("[]")}) > 50


def test_null_of_every_type_is_null_in_both_directions(service: Service) -> None:
    types = sorted({sql_type for sql_type, *_ in TABLE})
    out = service.query("select " + ", ".join(f"null::{type_}" for type_ in types), row_format="array")
    assert out["rows"] == [[None] * len(types)]
    casts = ", ".join(f"${number}::{type_}" for number, type_ in enumerate(types, start=1))
    back = service.query(f"select {casts}", *[None] * len(types), row_format="array")
    assert back["rows"] == [[None] * len(types)]


def test_xml_is_text_where_the_engine_was_built_with_it(service: Service) -> None:
    if service.post_query("select '<a/>'::xml").json().get("error", {}).get("code") == "feature_not_supported":
        pytest.skip("this engine was built without XML")
    both_ways(service, "xml", "'<a>1 &lt; 2</a>'", "xml", '"<a>1 &lt; 2</a>"')


BIG_NUMBERS = [
    # SQL expression, JSON with big_numbers=number, JSON with big_numbers=string
    ("9223372036854775807", "9223372036854775807", '"9223372036854775807"'),
    ("'-9223372036854775808'::int8", "-9223372036854775808", '"-9223372036854775808"'),
    ("1::int8", "1", '"1"'),
    ("1.50", "1.50", '"1.50"'),
    ("'NaN'::numeric", '"NaN"', '"NaN"'),
    ("array[1, null]::int8[]", "[1,null]", '["1",null]'),
    ("array[array[1.0]]", "[[1.0]]", '[["1.0"]]'),
    ("1.5::values_amount", "1.50", '"1.50"'),
    # Types whose values every JSON parser can hold stay numbers, and the insides of JSON are nobody's business.
    ("1::int4", "1", "1"),
    ("1.5::float8", "1.5", "1.5"),
    ("4294967295::oid", "4294967295", "4294967295"),
    ("'9223372036854775807'::jsonb", "9223372036854775807", "9223372036854775807"),
    ("null::int8", "null", "null"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "as_number", "as_string"), BIG_NUMBERS)
def test_big_numbers_selects_numbers_or_strings_for_int8_and_numeric(
    service: Service, expression: str, as_number: str, as_string: str
) -> None:
    assert only_value(ask(service, f"select {expression}")) == as_number
    assert only_value(ask(service, f"select {expression}", big_numbers="number")) == as_number
    assert only_value(ask(service, f"select {expression}", big_numbers="string")) == as_string


@pytest.mark.parametrize(
    "digits", ["1234567890" * 100, "-" + "9" * 500 + "." + "1234567890" * 50, "0." + "0" * 999 + "1"]
)
def test_a_numeric_of_a_thousand_digits_keeps_every_digit(service: Service, digits: str) -> None:
    both_ways(service, "numeric", f"'{digits}'", "numeric", digits)
    assert only_value(ask(service, "select $1::numeric", digits, big_numbers="string")) == f'"{digits}"'
    assert only_value(ask(service, "select $1::text", digits)) == f'"{digits}"'
    assert only_value(ask(service, "select $1::jsonb", digits)) == digits


BYTES = [
    ("", ""),
    ("00", "AA=="),
    ("00ff10", "AP8Q"),
    ("f09f9880", "8J+YgA=="),
    (bytes(range(256)).hex(), base64.b64encode(bytes(range(256))).decode()),
]


@pytest.mark.parametrize(("digits", "expected"), BYTES)
def test_bytea_is_base64_both_ways_and_accepted_in_hexadecimal(service: Service, digits: str, expected: str) -> None:
    assert only_value(ask(service, "select $1::bytea", f'"{expected}"')) == f'"{expected}"'
    assert only_value(ask(service, "select $1::bytea[]", f'["{expected}", null]')) == f'["{expected}",null]'
    assert only_value(ask(service, f"select '\\x{digits}'::bytea")) == f'"{expected}"'
    assert only_value(ask(service, "select $1::bytea", json.dumps(f"\\x{digits}"))) == f'"{expected}"'
    assert only_value(ask(service, "select decode($1, 'base64')", f'"{expected}"')) == f'"{expected}"'
    assert (
        only_value(ask(service, "select array[$1::bytea, null]", json.dumps(f"\\x{digits}"))) == f'["{expected}",null]'
    )


@pytest.mark.parametrize("type_", ["json", "json[]"])
def test_line_breaks_in_json_become_spaces_and_nothing_else_changes(service: Service, type_: str) -> None:
    literal = """E'{"a":\\n\\t[1,\\r\\n2],  "b": "c\\\\nd"}'"""
    value = '{"a": \t[1,  2],  "b": "c\\nd"}'
    sql, expected = (
        (f"select {literal}::json", value) if type_ == "json" else (f"select array[{literal}::json]", f"[{value}]")
    )
    assert only_value(ask(service, sql)) == expected


@pytest.mark.parametrize("type_", ["text", "jsonb", "text[]"])
def test_ten_megabytes_of_text_go_in_and_out(service: Service, type_: str) -> None:
    pattern = 'grün 😀 "quoted" \\ \n'
    text = pattern * (10 * 1024 * 1024 // len(pattern.encode()) + 1)
    sent = [text] if type_ == "text[]" else text
    answer = service.query(f"select $1::{type_} as v", sent)
    assert answer["rows"][0]["v"] == sent
    if type_ == "text":
        assert service.value("select octet_length($1::text)", text) == len(text.encode()) >= 10 * 1024 * 1024


def test_a_type_that_was_renamed_has_its_new_name_at_once(service: Service) -> None:
    service.query("create type values_before as enum ('a')")
    assert service.query("select 'a'::values_before, array['a'::values_before]")["types"] == [
        "values_before", "values_before[]",
    ]  # fmt: skip
    service.query("alter type values_before rename to values_after")
    assert service.query("select 'a'::values_after, array['a'::values_after]")["types"] == [
        "values_after", "values_after[]",
    ]  # fmt: skip
    service.query("drop type values_after")


def test_a_time_zone_that_the_statement_sets_shows_as_an_offset_of_rfc_3339(service: Service) -> None:
    instant = "timestamptz '2026-01-01 00:00+00'"
    for zone, expected in [("Asia/Kolkata", "05:30:00+05:30"), ("Europe/Berlin", "01:00:00+01:00")]:
        (row,) = service.query(f"select set_config('TimeZone', '{zone}', true), {instant} as v")["rows"]
        assert row["v"] == f"2026-01-01T{expected}"
    assert service.value(f"select {instant}") == "2026-01-01T00:00:00Z"


def test_bytes_are_stored_again_as_they_were_read(service: Service) -> None:
    """As a program does that copies rows. Each round of the loop may take another path through the service."""
    service.query("create table values_bytes (id int, content bytea)")
    service.query("insert into values_bytes select n, decode(md5(n::text), 'hex') from generate_series(1, 20) n")
    for row in service.query("select id, content from values_bytes order by id")["rows"]:
        service.query("insert into values_bytes values ($1, $2)", row["id"], row["content"])
    same = "select count(*) from values_bytes group by id, content having count(*) = 2"
    assert service.query(same)["row_count"] == 20
    service.query("drop table values_bytes")


def test_a_string_for_bytea_that_is_not_base64_is_refused(service: Service) -> None:
    error = error_of(service.post_query("select $1::bytea", "hello world"), 400, "invalid_parameter")
    assert "\\x" in error["hint"]
