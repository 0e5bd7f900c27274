"""The compiled writer makes the bytes that the uncompiled renderer makes, for every type, value and form.

Without the kernel both are one, and these tests say nothing; with it they compare two ways.
"""

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import StatementError
from plainsql_server.engine.rows import RowRenderer
from plainsql_server.engine.shapes import Encoding, describe, rendering_of
from plainsql_server.engine.types import SHIPPED_TYPES

FORMS = {
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
ZONES = ["UTC", "Asia/Kolkata", "America/New_York", "Europe/London", "+00:00:30"]


def renderer_for(result: PGresult, encoding: Encoding) -> RowRenderer:
    description = describe(result)
    return rendering_of(description, [SHIPPED_TYPES[oid] for _, oid in description], encoding).rows


def assert_same(result: PGresult) -> None:
    for encoding in FORMS.values():
        renderer = renderer_for(result, encoding)
        assert renderer.render(result) == renderer.render_uncompiled(result, 0, result.ntuples)


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=5)
)
def test_every_text_is_written_as_it_is_rendered(engine: psycopg.Connection, texts: list[str]) -> None:
    result = engine.pgconn.exec_params(
        ("values " + ",".join(f"(${index}::text)" for index in range(1, len(texts) + 1))).encode(),
        [text.encode() for text in texts],
    )
    assert_same(result)


@pytest.mark.parametrize("encoding", FORMS.values(), ids=FORMS)
def test_text_that_is_not_utf8_is_refused_both_ways(engine: psycopg.Connection, encoding: Encoding) -> None:
    engine.pgconn.exec_(b"set client_encoding to latin1")
    try:
        result = engine.pgconn.exec_(b"select 'gr\xfcn'::text")
    finally:
        engine.pgconn.exec_(b"reset client_encoding")
    renderer = renderer_for(result, encoding)
    for render in (renderer.render_some, renderer.render_uncompiled):
        with pytest.raises(StatementError):
            render(result, 0, 1)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 70_000, 2_000_000])
def test_rows_of_any_size_are_written_whole(engine: psycopg.Connection, size: int) -> None:
    assert_same(
        engine.pgconn.exec_(f"select repeat('x', {size}), repeat(E'\\x01', {size}) union all select 'a', 'b'".encode())
    )
