import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.engine.encoding.csv_values import csv_encoder, quoted
from plainsql_server.engine.encoding.types import SHIPPED_TYPES
from plainsql_server.engine.encoding.values import encoder_for

pytestmark = pytest.mark.unit

TEXT, JSON, INT4, TIMESTAMPTZ = 25, 114, 23, 1184


def field(oid: int, value: bytes) -> bytes:
    return csv_encoder(encoder_for(SHIPPED_TYPES[oid], big_numbers_as_strings=False))(value)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_survives_a_csv_reader(text: str) -> None:
    line = field(TEXT, text.encode()) + b"," + field(INT4, b"7") + b"\r\n"
    assert list(csv.reader(io.StringIO(line.decode(), newline=""), strict=True)) == [[text, "7"]]


def test_an_empty_text_differs_from_null() -> None:
    assert quoted(b"") == b'""'


def test_values_are_those_of_json_without_its_quotation_marks() -> None:
    assert field(TIMESTAMPTZ, b"2026-11-14 22:15:31+00") == b"2026-11-14T22:15:31Z"
    assert field(JSON, b'{"a": "b"}') == b'"{""a"": ""b""}"'
    assert field(JSON, b"7") == b"7"
    assert field(JSON, b'"a"') == b'"""a"""'
