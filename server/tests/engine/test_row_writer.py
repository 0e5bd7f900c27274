"""The compiled writer makes the bytes that the uncompiled renderer makes, for every type, value and form.

Without the extension modules both are one; with them they are compared. Since both could share a flaw, what they make
is also read back: every row is what its form promises, with as many values as there are columns.
"""

import csv
import io
import json
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import StatementError
from plainsql_server.engine.encoding import rows
from plainsql_server.engine.encoding.rows import RowRenderer, distinct_names
from plainsql_server.engine.encoding.shapes import Encoding, describe, rendering_of
from plainsql_server.engine.encoding.types import SHIPPED_TYPES
from server.tests.examples import examples

# Some rows here are larger than the reader's own limit.
csv.field_size_limit(1 << 24)

ROW_FORMATS = {
    "objects": Encoding(),
    "arrays": Encoding(rows_as_arrays=True),
    "strings for big numbers": Encoding(big_numbers_as_strings=True),
    "events": Encoding(before=b"event: row\ndata: ", after=b"\n\n"),
    "CSV": Encoding(after=b"\r\n", as_csv=True),
}
# A value list a type, as it stands in SQL; every one has a NULL put beside it.
VALUES = {
    "int4": ["0", "-2147483648", "7"],
    "int8": ["9223372036854775807", "-1"],
    "numeric": ["0", "-0.50", "1e-20", "'NaN'", "'Infinity'", "'-Infinity'", "123456789012345678901234567890.5"],
    "float8": ["0", "-0", "1e300", "1.5", "'NaN'", "'Infinity'", "'-Infinity'"],
    "bool": ["true", "false"],
    "text": [
        "''", "'plain'", "'a,b'", "'a\"b'", "E'back\\\\slash'", "E'line\\nbreak'", "E'\\r'",
        "E'\\t\\b\\f\\x01\\x1f\\x7f'",
        "' ahead'", "'behind '", "' '", "'ü'", "'😀, \"😀\"'", "U&'\\00a0'", "U&'\\2028'", "'\u2003'", "'%b %%'",
    ],
    "varchar": ["'x'", "''"],
    "timestamp": [
        "'2026-11-15 06:45:00'", "'2026-11-15 06:45:00.123456'", "'infinity'", "'-infinity'", "'0044-03-15 BC'",
        "'12026-01-01'",
    ],
    "timestamptz": [
        "'2026-11-15 06:45:00+00'", "'2026-11-15 06:45:00.1+02'", "'infinity'", "'0044-03-15 BC'", "'12026-01-01'",
    ],
    "date": ["'2026-11-15'", "'infinity'"],
    "json": ["'{\"a\": 1}'", "E'{\\n\"a\": 1}'", "'[]'", "'\"a,b\"'"],
    "jsonb": ["'{\"a\": [1, 2]}'", "'\"text\"'"],
    "bytea": ["''", "'\\x00ff'"],
    "int4[]": ["'{}'", "'{1,NULL,3}'", "'{{1},{2}}'"],
    "text[]": ["'{\"a,b\",c,NULL,\"\"}'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "interval": ["'1 day 2 hours'"],
}  # fmt: skip
# POSIX lets a zone have any name between angle brackets.
HOSTILE_ZONES = ['<","x":"+00>0', "<\n\n:x\n\n+00>0", '<",\r\n1,2+00>0', "<\\+00>0", "<ü+00>0"]
ZONES = ["UTC", "Asia/Kolkata", "America/New_York", "Europe/London", "+00:00:30"]


def renderer_for(result: PGresult, encoding: Encoding) -> RowRenderer:
    description = describe(result)
    return rendering_of(description, [SHIPPED_TYPES[oid] for _, oid in description], encoding).rows


def assert_same(result: PGresult) -> None:
    for encoding in ROW_FORMATS.values():
        renderer = renderer_for(result, encoding)
        rows = renderer.render(result)
        assert rows == renderer.render_uncompiled(result, 0, result.ntuples)
        for row in rows:
            assert_sound(row, encoding, [name for name, _ in describe(result)])


def assert_sound(row: bytes, encoding: Encoding, names: list[str]) -> None:
    if encoding.as_csv:
        (fields,) = csv.reader(io.StringIO(row.decode(), newline=""))
        assert len(fields) == len(names)
        return
    assert row.startswith(encoding.before)
    assert row.endswith(encoding.after)
    content = row[len(encoding.before) : len(row) - len(encoding.after)]
    assert b"\n" not in content
    assert b"\r" not in content
    value = json.loads(content.decode())
    assert len(value) == len(names)
    assert encoding.rows_as_arrays or list(value) == distinct_names(names)


@pytest.mark.parametrize("type_", VALUES)
def test_every_value_is_written_as_it_is_rendered(engine: psycopg.Connection, type_: str) -> None:
    rows = ",".join(f"(({value})::{type_}, 1, null::{type_})" for value in VALUES[type_])
    result = engine.pgconn.exec_(f'select * from (values {rows}, (null, null, null)) as t (a, "b%", c)'.encode())
    assert result.ntuples == len(VALUES[type_]) + 1
    assert_same(result)


@pytest.mark.parametrize("zone", ZONES)
def test_times_are_the_same_in_every_zone(engine: psycopg.Connection, zone: str) -> None:
    engine.pgconn.exec_(f"set timezone to '{zone}'".encode())
    try:
        rows = ",".join(f"({value}::timestamptz)" for value in VALUES["timestamptz"])
        assert_same(engine.pgconn.exec_(f"values {rows}, ('1800-01-01'), ('2026-07-01')".encode()))
    finally:
        engine.pgconn.exec_(b"reset timezone")


@pytest.mark.parametrize("zone", HOSTILE_ZONES)
@pytest.mark.parametrize("style", ["ISO", "SQL", "Postgres", "German"])
def test_times_in_every_zone_and_style_are_written_as_rendered(
    engine: psycopg.Connection, style: str, zone: str
) -> None:
    engine.execute("select set_config('datestyle', %s, false), set_config('timezone', %s, false)", (style, zone))
    try:
        result = engine.pgconn.exec_(
            b"select now() a, now()::timestamp b, now()::date c, now()::timetz d, array[now()] e, interval '1 day' f,"
            b" 'infinity'::timestamptz g, '0044-03-15 BC'::timestamptz h, tstzrange(now(), null) i, row(now()) j"
        )
        assert_same(result)
    finally:
        engine.execute("reset datestyle")
        engine.execute("reset timezone")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(200))
@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=5)
)
def test_every_text_is_written_as_it_is_rendered(engine: psycopg.Connection, texts: list[str]) -> None:
    result = engine.pgconn.exec_params(
        ("values " + ",".join(f"(${index}::text)" for index in range(1, len(texts) + 1))).encode(),
        [text.encode() for text in texts],
    )
    assert_same(result)


@pytest.mark.parametrize("encoding", ROW_FORMATS.values(), ids=ROW_FORMATS)
@pytest.mark.parametrize(
    "value",
    ["'grün'::text", "to_json('grün'::text)", "to_jsonb('grün'::text)", "array['grün']", "array[to_json('ü'::text)]"],
)
def test_text_that_is_not_utf8_is_rejected_by_both_writers(
    engine: psycopg.Connection, encoding: Encoding, value: str
) -> None:
    engine.pgconn.exec_(b"set client_encoding to latin1")
    try:
        result = engine.pgconn.exec_(f"select {value}".encode("latin1"))
    finally:
        engine.pgconn.exec_(b"reset client_encoding")
    renderer = renderer_for(result, encoding)
    for render in (renderer.render_some, renderer.render_uncompiled):
        with pytest.raises(StatementError):
            render(result, 0, 1)


@pytest.mark.parametrize("encoding", ROW_FORMATS.values(), ids=ROW_FORMATS)
@pytest.mark.parametrize(
    "value", ["to_jsonb('{}'::text)", "to_json('{} {}'::text)", "array['{}, \"']", "array['{}', 'a']", "array['{}']"]
)
@pytest.mark.parametrize("second", [0x5C, 0x7B, 0x7D])
def test_half_a_character_of_another_encoding_means_nothing(
    engine: psycopg.Connection, encoding: Encoding, value: str, second: int
) -> None:
    """In GBK these are two characters; their bytes are one of UTF-8 and a backslash or a brace."""
    text = bytes([0xE4, 0xB8, 0xAD, second]).decode("gbk")
    engine.pgconn.exec_(b"set client_encoding to gbk")
    try:
        result = engine.pgconn.exec_(f"select {value.replace('{}', text)}".encode("gbk"))
    finally:
        engine.pgconn.exec_(b"reset client_encoding")
    assert result.ntuples == 1, result.error_message
    renderer = renderer_for(result, encoding)
    for render in (renderer.render_some, renderer.render_uncompiled):
        try:
            (row,) = render(result, 0, 1)
        except StatementError:
            continue
        assert_sound(row, encoding, [name for name, _ in describe(result)])


@pytest.mark.parametrize("size", [4095, 4096, 4097, 70_000, 2_000_000])
def test_rows_of_any_size_are_written_completely(engine: psycopg.Connection, size: int) -> None:
    assert_same(
        engine.pgconn.exec_(f"select repeat('x', {size}), repeat(E'\\x01', {size}) union all select 'a', 'b'".encode())
    )


@pytest.mark.compiled
def test_the_writer_refuses_what_does_not_fit(engine: psycopg.Connection) -> None:
    writer = rows._writer_class
    assert writer is not None
    for between, kinds in (([b"", b""], []), ([b"", b""], [0, 0]), ([b""], [0])):
        with pytest.raises(ValueError, match="a kind for each encoder"):
            writer(between, [bytes], kinds, b"null", False)
    gives_nothing: Any = dict[bytes, bytes]().get
    with pytest.raises(TypeError):
        writer([b"", b""], [gives_nothing], [0], b"null", False).write(engine.pgconn.exec_(b"select 1"), 0, 1)
