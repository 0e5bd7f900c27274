"""The encodings of values, type by type, without an engine; and the table of types against a real one."""

import json

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.core.errors import StatementError
from plainsql_server.engine.encoding.types import SHIPPED_TYPES, EngineType
from plainsql_server.engine.encoding.values import encoder_for

pytestmark = pytest.mark.unit

_BY_NAME = {type_.name: type_ for type_ in SHIPPED_TYPES.values()}
_CUSTOMERS_INT4 = EngineType(16_500, "int4")
_DOMAIN = EngineType(16_501, "amount", base=EngineType(16_502, "inner", base=_BY_NAME["numeric"]))
_DOMAIN_ARRAY = EngineType(16_503, "amount[]", element=_DOMAIN)
_DOMAIN_OF_ARRAY = EngineType(16_504, "list", base=_BY_NAME["int8[]"])


def encode(type_: EngineType | str, value: bytes, *, big_numbers_as_strings: bool = False) -> bytes:
    resolved = _BY_NAME[type_] if isinstance(type_, str) else type_
    encoder = encoder_for(resolved, big_numbers_as_strings=big_numbers_as_strings)
    return encoder(value) if encoder else value


ENCODINGS: list[tuple[EngineType | str, bytes, bytes]] = [
    ("bool", b"t", b"true"),
    ("bool", b"f", b"false"),
    ("int2", b"-1", b"-1"),
    ("int8", b"9223372036854775807", b"9223372036854775807"),
    ("numeric", b"1.50", b"1.50"),
    ("numeric", b"NaN", b'"NaN"'),
    ("float4", b"Infinity", b'"Infinity"'),
    ("float8", b"-Infinity", b'"-Infinity"'),
    ("float8", b"1e+308", b"1e+308"),
    ("text", b"NaN", b'"NaN"'),
    ("text", b'a"\\\n\x01', b'"a\\"\\\\\\n\\u0001"'),
    ("uuid", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", b'"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("date", b"2026-11-14", b'"2026-11-14"'),
    ("timestamp", b"2026-11-14 22:15:31", b'"2026-11-14T22:15:31"'),
    ("timestamp", b"0044-03-15 00:00:00 BC", b'"0044-03-15T00:00:00 BC"'),
    ("timestamp", b"-infinity", b'"-infinity"'),
    ("timestamptz", b"2026-11-14 22:15:31.244383+00", b'"2026-11-14T22:15:31.244383Z"'),
    ("timestamptz", b"0044-03-15 00:00:00+00 BC", b'"0044-03-15T00:00:00Z BC"'),
    ("timestamptz", b"2026-11-14 22:15:31+05:30", b'"2026-11-14T22:15:31+05:30"'),
    ("timestamptz", b"2026-11-14 22:15:31-05", b'"2026-11-14T22:15:31-05:00"'),
    ("timestamptz", b"2026-11-14 22:15:31+00:30", b'"2026-11-14T22:15:31+00:30"'),
    ("timestamptz", b"infinity", b'"infinity"'),
    # What a statement gets that sets DateStyle and TimeZone to whatever it likes.
    ("timestamptz", b'11/15/2026 06:45:00 ","x":"+00', rb'"11/15/2026 06:45:00 \",\"x\":\"+00"'),
    ("timestamptz", b"2026-11-15 06:45:00 \n\nA+00", rb'"2026-11-15 06:45:00 \n\nA+00"'),
    ("timestamp", b"Sun Nov 15 06:45:00 2026", b'"Sun Nov 15 06:45:00 2026"'),
    ("timestamp", b'2026-11-15 06:45:00"', rb'"2026-11-15 06:45:00\""'),
    ("json", b'{"a" :\r\n1}', b'{"a" :  1}'),
    ("jsonb", b'{"a": "\\n"}', b'{"a": "\\n"}'),
    ("jsonb", '"é\\n"'.encode(), '"é\\n"'.encode()),
    ("bytea", b"\\x00ff10", b'"AP8Q"'),
    ("bytea", b"\\x", b'""'),
    # What a statement gets that sets bytea_output to escape.
    ("bytea", b"a\\000b\\\\", b'"YQBiXA=="'),
    ("int4[]", b"{1,NULL}", b"[1,null]"),
    ("bool[]", b"{{t},{f}}", b"[[true],[false]]"),
    ("jsonb[]", rb'{"{\"a\": 1}","\"x\"",NULL}', b'[{"a": 1},"x",null]'),
    ("bytea[]", rb'{"\\x00ff"}', b'["AP8="]'),
    ("timestamptz[]", b'{"2026-11-14 22:15:31+00"}', b'["2026-11-14T22:15:31Z"]'),
    ("box[]", b"{(1,1),(0,0);NULL}", b'["(1,1),(0,0)",null]'),
    (_CUSTOMERS_INT4, b"one", b'"one"'),
    (_DOMAIN, b"1.50", b"1.50"),
    (_DOMAIN_ARRAY, b"{1.50,NULL}", b"[1.50,null]"),
    (_DOMAIN_OF_ARRAY, b"{1,2}", b"[1,2]"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value", "expected"), ENCODINGS)
def test_a_type_has_its_encoding(type_: EngineType | str, value: bytes, expected: bytes) -> None:
    assert encode(type_, value) == expected
    json.loads(expected)


BIG_NUMBERS: list[tuple[EngineType | str, bytes, bytes]] = [
    ("int8", b"1", b'"1"'),
    ("numeric", b"1.50", b'"1.50"'),
    ("numeric", b"NaN", b'"NaN"'),
    ("int8[]", b"{1,NULL}", b'["1",null]'),
    (_DOMAIN, b"1.50", b'"1.50"'),
    (_DOMAIN_ARRAY, b"{1.50}", b'["1.50"]'),
    (_DOMAIN_OF_ARRAY, b"{1}", b'["1"]'),
    ("int4", b"1", b"1"),
    ("float8", b"1", b"1"),
    ("oid", b"1", b"1"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value", "expected"), BIG_NUMBERS)
def test_int8_and_numeric_are_strings_where_that_is_asked_for(
    type_: EngineType | str, value: bytes, expected: bytes
) -> None:
    assert encode(type_, value, big_numbers_as_strings=True) == expected


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_is_a_json_string_that_holds_it(text: str) -> None:
    encoded = encode("text", text.encode())
    assert json.loads(encoded) == text
    assert b"\n" not in encoded


@given(raw=st.binary())
def test_any_bytes_are_the_same_in_both_of_the_engines_formats(raw: bytes) -> None:
    escaped = b"".join(b"\\\\" if byte == 0x5C else b"\\%03o" % byte for byte in raw)
    assert encode("bytea", b"\\x" + raw.hex().encode()) == encode("bytea", escaped)


# In LATIN1 and in GBK, where the second byte of a character can be a backslash or a brace, and be UTF-8 by chance.
MISREAD: list[tuple[str, bytes]] = [
    ("text", b"gr\xfcn"),
    ("json", b'"gr\xfcn"'),
    ("jsonb", b'{"a": "\xe4\xb8\xad\\", "b": "c"}'),
    ("jsonb[]", b'{"\\"gr\xfcn\\""}'),
    ("timestamptz", b"11/15/2026 06:45:00 gr\xfcn"),
    ("text[]", b'{"a \xe4\xb8\xad\\"}'),
    ("text[]", b"{\xe4\xb8\xad}}"),
    ("text[]", b"{\xe4\xb8\xad{}"),
    ("text[]", b"{\xe4\xb8\xad},\xe4\xb8\xad{}"),
    ("text[]", b"{\xe4\xb8\xad{b\xe4\xb8\xad}c}"),
]


@pytest.mark.parametrize(("type_", "value"), MISREAD)
def test_text_in_another_encoding_is_an_error_of_the_statement(type_: str, value: bytes) -> None:
    with pytest.raises(StatementError) as raised:
        encode(type_, value)
    assert raised.value.code == "untranslatable_character"


def test_the_table_of_shipped_types_is_the_engines_own(engine: psycopg.Connection) -> None:
    rows = engine.execute(
        "select t.oid, t.typname, coalesce(e.oid, 0), coalesce(e.typname, ''), t.typdelim"
        " from pg_type t left join pg_type e on e.typarray = t.oid"
    ).fetchall()
    expected = {
        oid: (f"{element_name}[]" if element else name, element, delimiter if element else ",")
        for oid, name, element, element_name, delimiter in rows
    }
    ours = {
        oid: (type_.name, type_.element.oid if type_.element else 0, type_.delimiter)
        for oid, type_ in SHIPPED_TYPES.items()
    }
    assert {oid: shape for oid, shape in ours.items() if oid and expected.get(oid) != shape} == {}
    assert {expected[oid][0] for oid in (16, 20, 23, 700, 1184, 1700, 3802, 1007)} <= set(_BY_NAME)
