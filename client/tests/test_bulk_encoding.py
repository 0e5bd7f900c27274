"""How the rows of `insert_rows` and `insert_frame` become JSON: each once, however they are divided into statements."""

import enum
import json
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

from plainsql import bulk, values
from plainsql.parameters import encode_param
from plainsql.transport import protocol

pytestmark = pytest.mark.unit

ROWS = [[at, f'nä"me {at}', None, Decimal("1.50"), [1, None]] for at in range(7_000)]


def test_each_row_is_encoded_once_and_all_of_them_are_in_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def counted(value: Any) -> str:
        encoded.append(value)
        return values.encode_json(value)

    monkeypatch.setattr(bulk, "encode_json", counted)
    monkeypatch.setattr(protocol, "encode_json", counted)
    target = bulk.InsertTarget("t", ["a", "b", "c", "d", "e"])
    batches = list(bulk._batches(target.columns, iter(ROWS)))
    statements = [bulk._statement("t", target, batch) for batch in batches]
    body = protocol._transaction_json({"statements": statements, "row_format": "array"})
    read = json.loads(body)
    assert len(batches) > 1
    assert [each for statement in read["statements"] for each in statement["params"]] == [
        each if not isinstance(each, Decimal) else str(each) for row in ROWS for each in row
    ]
    assert [each["sql"].count("(") - 1 for each in read["statements"]] == [batch.rows for batch in batches]
    assert sum(len(each) == 5 for each in encoded) == len(ROWS)
    assert sum(each.size_bytes for each in batches) >= len(body.encode()) - 1_000


def test_a_transaction_without_encoded_parameters_is_ordinary_json() -> None:
    statements = [{"sql": "select 1"}, {"sql": "select $1", "params": ["ä"]}]
    content = {"statements": statements, "row_format": "array"}
    assert json.loads(protocol._transaction_json(content)) == content
    mixed = [*statements, {"sql": "select $1, $2", "params": values.EncodedParams('1, "b"'), "rows": False}]
    read = json.loads(protocol._transaction_json({"statements": mixed, "database": "main"}))
    assert read["statements"][:2] == statements
    assert read["statements"][2] == {"sql": "select $1, $2", "params": [1, "b"], "rows": False}


class Colour(enum.StrEnum):
    RED = "red"


class Number(int):
    """A subclass, as programs have them."""


def test_values_of_a_type_that_was_seen_before_are_written_in_the_same_way() -> None:
    seen = [Colour.RED, Number(3), pd.Timestamp("2026-01-02"), pd.NaT, pd.NA, True, Decimal(1)]
    for _ in range(2):
        assert [encode_param(each) for each in seen] == ["red", 3, "2026-01-02T00:00:00", None, None, True, "1"]
    for _ in range(2):
        with pytest.raises(TypeError, match="Unsupported parameter type object"):
            encode_param(object())
