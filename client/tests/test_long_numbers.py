"""Numbers with more digits than Python converts to int by default: read, written, imported and printed."""

from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import plainsql
from client.tests.test_command import run
from client.tests.test_dbapi import connect
from plainsql.parameters import encode_param
from plainsql.values import LongInteger, decode_json, encode_json
from server.tests.service import Service

DIGITS = "12345" * 1_000
LONG = f"'{DIGITS}'::numeric"


def test_a_numeric_is_a_decimal_with_all_its_digits(service: Service, db: plainsql.Client) -> None:
    row: Any = db.query(
        f"select {LONG} as whole, -{LONG} * 0.1 as part, array[{LONG}, null] as many, 7::int8 as seven"
    ).one()
    assert row == (Decimal(DIGITS), Decimal(f"-{DIGITS[:-1]}.5"), [Decimal(DIGITS), None], 7)
    assert type(row.whole) is Decimal
    with db.stream(f"select {LONG} as n from generate_series(1, 3)") as rows:
        assert [each.n for each in rows] == [Decimal(DIGITS)] * 3
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute(f"select {LONG}")
        assert cursor.fetchone() == (Decimal(DIGITS),)


def test_an_integer_in_json_is_an_int(db: plainsql.Client) -> None:
    value = db.query(f"select jsonb_build_object('n', {LONG}, 'x', 1.5)").value()
    assert value == {"n": int(Decimal(DIGITS)), "x": 1.5}
    assert type(value["n"]) is int


def test_a_long_integer_is_a_parameter(db: plainsql.Client) -> None:
    number = int(Decimal(DIGITS))
    for each in (number, -number, Decimal(DIGITS)):
        assert db.query("select $1::numeric", each).value() == each
    assert db.query("select $1::numeric[]", [number, 1]).value() == [number, 1]
    assert encode_param(10**600) == 10**600


@pytest.mark.parametrize("digits", [DIGITS, "1" + "0" * 10_000])
def test_json_with_a_long_integer_is_written_as_it_was_read(service: Service, db: plainsql.Client, digits: str) -> None:
    text = f'{{"n": [{digits}, -1, 1.5, null, true, "é\\n"]}}'
    value = db.query(f"select '{text}'::jsonb").value()
    assert type(value["n"][0]) is (int if digits == DIGITS else LongInteger)
    for each in (value, value["n"], value["n"][0]):
        assert db.query("select $1::jsonb", each).value() == each
    assert db.query("select $1::jsonb = $2::text::jsonb", value, text).value() is True
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute("select %s::jsonb", [value])
        cursor.execute("select %s::jsonb", [value])
        assert cursor.fetchone() == (value,)


def test_other_values_are_encoded_as_before() -> None:
    value = {1: [True, None], None: 2.5, "é": {"n": 10**5_000}}
    text = encode_json(value)
    assert text.replace("1" + "0" * 5_000, "7") == '{"1": [true, null], "null": 2.5, "é": {"n": 7}}'
    for wrong, kind in ((Decimal("1.5"), TypeError), (float("nan"), ValueError), (object(), TypeError)):
        for also in (1, 10**5_000):
            with pytest.raises(kind):
                encode_json({"a": [also, wrong]})


def test_the_command_imports_and_prints_it(service: Service, db: plainsql.Client, tmp_path: Path) -> None:
    assert run(service, "sql", f"select {LONG} as n").stdout.split()[2] == DIGITS
    assert run(service, "sql", "-o", "ndjson", f"select {LONG} as n", "select 1").stdout.startswith(
        f'{{"n":{DIGITS}}}\n'
    )
    table = f"long_{uuid4().hex[:8]}"
    (tmp_path / "in.ndjson").write_text(f'{{"n": {DIGITS}, "t": "x"}}\n')
    done = run(service, "import", str(tmp_path / "in.ndjson"), "--table", table, "--create")
    assert done.returncode == 0, done.stderr
    assert db.query(f"select * from {table}").one() == (Decimal(DIGITS), "x")
    db.query(f"drop table {table}")


def test_wrong_json_is_still_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        decode_json(f"[{DIGITS}, ]")
