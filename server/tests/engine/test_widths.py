"""How long rows can be, against the longest values of each type that PostgreSQL itself writes."""

import psycopg
import pytest

from plainsql_server.engine.encoding.widths import widest_row_bytes

LONGEST = [
    "false::bool", "'x'::\"char\"", "(-9223372036854775808)::int8", "(-32768)::int2", "(-2147483648)::int4",
    "4294967295::oid", "(-1.1754944e-38)::float4", "(-2.2250738585072014e-308)::float8", "'5874897-12-31'::date",
    "'4713-01-01 BC'::date", "'24:00:00'::time", "'12:34:56.789012'::time",
    "'4714-11-24 00:00:00.000001 BC'::timestamp", "'294276-12-31 23:59:59.999999'::timestamp",
    "'294275-12-31 23:59:59.999999+15:59:59'::timestamptz",
    "'4713-01-01 00:00:00.000001-15:59:59 BC'::timestamptz",
    "gen_random_uuid()", "'😀😀😀'::char(3)", "'😀'::varchar(1)",
]  # fmt: skip
UNBOUNDED = [
    "'x'::text",
    "1::numeric",
    "'{1}'::int[]",
    "'x'::varchar",
    "'{}'::jsonb",
    "'x'::bytea",
    "'1 day'::interval",
]


@pytest.mark.parametrize("value", LONGEST)
def test_no_value_is_longer_than_its_type_allows(engine: psycopg.Connection, value: str) -> None:
    result = engine.pgconn.exec_(f"set timezone to 'Asia/Kolkata'; select {value}, 1::int4".encode())
    widest = widest_row_bytes(result)
    assert widest is not None
    written = result.get_value(0, 0)
    assert written is not None
    assert len(written) <= widest - 11


@pytest.mark.parametrize("value", UNBOUNDED)
def test_a_row_with_a_value_of_any_length_has_no_width(engine: psycopg.Connection, value: str) -> None:
    assert widest_row_bytes(engine.pgconn.exec_(f"select 1::int4, {value}".encode())) is None
