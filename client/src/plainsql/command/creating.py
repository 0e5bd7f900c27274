"""`plainsql import --create`: makes the table that a file needs.

A Parquet file has the types of its columns. For other files, a type is chosen only if every value of the first batch
fits it. If a later row does not fit, the import fails, names that row, and drops the table again.
"""

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plainsql.bulk import quoted
from plainsql.client import Client
from plainsql.command.batches import Batch

# With a plus sign or a leading zero, it is rather a telephone number or a code.
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_NUMERIC = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_FLOAT = re.compile(r"-?\d+(?:\.\d*)?[eE][+-]?\d+|NaN|-?Infinity", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME_ZONE = re.compile(r"(?:Z|[+-]\d\d(?::?\d\d)?)$")


def create_table(db: Client, table: str, types: Mapping[str, str]) -> None:
    """Creates the table, with columns of these types."""
    typed = ", ".join(f"{quoted(name)} {each}" for name, each in types.items())
    db.query(f"create table {table} ({typed})")


def fitting_types(columns: Sequence[str], batch: Batch | None, *, is_csv: bool) -> dict[str, str]:
    """The types that fit the values of a batch."""
    values = _values(columns, batch, is_csv=is_csv)
    return {name: type_of(each, from_text=is_csv) for name, each in zip(columns, values, strict=True)}


def _values(columns: Sequence[str], batch: Batch | None, *, is_csv: bool) -> list[list[Any]]:
    """The values of each column in the batch, without NULL."""
    if batch is None:
        return [[] for _ in columns]
    if is_csv:
        rows = [line.split(batch.field_separator) for line in batch.text.split(batch.row_separator)]
        return [[each for each in values if each != batch.null] for values in zip(*rows, strict=True)]
    objects = [json.loads(line, parse_float=_Number, parse_int=_Number) for line in batch.text.split("\n")]
    return [[each[name] for each in objects if each.get(name) is not None] for name in columns]


class _Number(str):
    """A number, as it is written."""

    __slots__ = ()


def type_of(values: Iterable[Any], *, from_text: bool = True) -> str:
    """The narrowest type that holds all of these values: text for none of them.

    Without `from_text`, a string is never taken for a number or a bool, as in JSON, which has these.
    """
    kinds = {_kind(value, from_text=from_text) for value in values}
    if len(kinds) == 1:
        return kinds.pop()
    for wide, narrow in (
        ("numeric", {"int8", "numeric"}),
        ("float8", {"int8", "numeric", "float8"}),
        ("timestamp", {"date", "timestamp"}),
    ):
        if kinds and kinds <= narrow:
            return wide
    return "jsonb" if "jsonb" in kinds else "text"


def _kind(value: Any, *, from_text: bool) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, dict | list):
        return "jsonb"
    text = str(value)
    if isinstance(value, int | _Number):
        return _number_kind(text) or "numeric"
    if from_text and text in ("true", "false"):
        return "bool"
    kind = _number_kind(text) if from_text else None
    return kind or ("uuid" if _UUID.fullmatch(text) else _time_kind(text))


def _number_kind(text: str) -> str | None:
    for kind, pattern in (("int8", _INTEGER), ("numeric", _NUMERIC), ("float8", _FLOAT)):
        if pattern.fullmatch(text):
            return kind
    return None


def _time_kind(text: str) -> str:
    """The type of a date or a time in ISO 8601; otherwise text."""
    if not _DATE.match(text) or text[10:11] not in ("", " ", "T"):
        return "text"
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return "text"
    if len(text) == 10:
        return "date"
    return "timestamptz" if _TIME_ZONE.search(text[10:]) else "timestamp"
