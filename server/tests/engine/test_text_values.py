"""Values as PostgreSQL writes them, for the Neon driver's protocol: intervals against a real engine, and the rest."""

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from plainsql_server.engine.encoding.text_values import json_encoder, postgres_interval, text_encoder
from plainsql_server.engine.encoding.types import SHIPPED_TYPES, EngineType

_BY_NAME = {type_.name: type_ for type_ in SHIPPED_TYPES.values()}
_SPAN = EngineType(16_500, "span", base=_BY_NAME["interval"])
_SPANS = EngineType(16_501, "span[]", element=_SPAN)

_MICROSECONDS = st.one_of(st.integers(-(10**13), 10**13), st.sampled_from([0, 1, -1, 10**6, -(10**6), 3_600_000_000]))
_SPANS_OF_TIME = st.tuples(st.integers(-30_000, 30_000), st.integers(-400, 400), _MICROSECONDS)


@given(st.lists(_SPANS_OF_TIME, min_size=1, max_size=50))
def test_an_interval_is_what_postgresql_writes_in_its_own_style(
    engine: psycopg.Connection, spans: list[tuple[int, int, int]]
) -> None:
    literals = [f"{months} mons {days} days {microseconds} us" for months, days, microseconds in spans]
    written = {}
    for style in ("iso_8601", "postgres"):
        engine.execute(sql.SQL("set intervalstyle to {}").format(style))
        query = "select each::interval::text from unnest(%s::text[]) each"
        written[style] = [text for (text,) in engine.execute(query, [literals])]
    assert [postgres_interval(text.encode()).decode() for text in written["iso_8601"]] == written["postgres"]


@pytest.mark.unit
@pytest.mark.parametrize("text", [b"infinity", b"-infinity", b"1 day", b"P", b"PT", b"", b"P1X"])
def test_what_is_no_interval_in_iso_8601_stays_as_it_is(text: bytes) -> None:
    assert postgres_interval(text) == text


TEXTS: list[tuple[EngineType | str, bytes, bytes, bytes]] = [
    # type, PostgreSQL's text, as text, as JSON
    ("bool", b"t", b'"t"', b"true"),
    ("int4", b"-1", b'"-1"', b"-1"),
    ("int8", b"1", b'"1"', b'"1"'),
    ("float8", b"NaN", b'"NaN"', b'"NaN"'),
    ("numeric", b"1.50", b'"1.50"', b'"1.50"'),
    ("jsonb", b'{"a": 1}', b'"{\\"a\\": 1}"', b'{"a": 1}'),
    ("text", b'a"\n', b'"a\\"\\n"', b'"a\\"\\n"'),
    ("timestamptz", b"2026-11-14 22:15:31+00", b'"2026-11-14 22:15:31+00"', b'"2026-11-14 22:15:31+00"'),
    ("interval", b"P1DT-1S", b'"1 day -00:00:01"', b'"1 day -00:00:01"'),
    (_SPAN, b"PT0S", b'"00:00:00"', b'"00:00:00"'),
    ("interval[]", b"{P1D,NULL,PT1H}", b'"{\\"1 day\\",NULL,01:00:00}"', b'["1 day",null,"01:00:00"]'),
    (_SPANS, b"[0:0][0:1]={{P1Y,P-1M}}", b'"[0:0][0:1]={{\\"1 year\\",\\"-1 mons\\"}}"', b'[["1 year","-1 mons"]]'),
    ("int8[]", b"{1,NULL}", b'"{1,NULL}"', b'["1",null]'),
    ("bool[]", b"{t,f}", b'"{t,f}"', b"[true,false]"),
    ("json[]", b'{"[1, {\\"a\\": 2}]"}', b'"{\\"[1, {\\\\\\"a\\\\\\": 2}]\\"}"', b'[[1, {"a": 2}]]'),
]


@pytest.mark.unit
@pytest.mark.parametrize(("type_", "text", "as_text", "as_json"), TEXTS)
def test_a_value_is_a_string_or_the_json_that_drivers_expect(
    type_: EngineType | str, text: bytes, as_text: bytes, as_json: bytes
) -> None:
    resolved = _BY_NAME[type_] if isinstance(type_, str) else type_
    for encoder, expected in ((text_encoder(resolved), as_text), (json_encoder(resolved), as_json)):
        assert (encoder(text) if encoder else text) == expected
