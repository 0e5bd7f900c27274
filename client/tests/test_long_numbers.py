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
from plainsql.values import decode_json
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
