"""`plainsql import --create`: makes the table that a file needs.

A Parquet file has the types of its columns. For other files, a type is chosen only if every value of the first batch
fits it. If a later row does not fit, the import fails, names that row, and drops the table again.
"""

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plainsql.bulk import quoted
from plainsql.client import Client
from plainsql.command.batches import Batch

# PostgreSQL would cut a longer name.
_NAME_BYTES_MAX = 63
# With a plus sign or a leading zero, it is rather a telephone number or a code.
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_NUMERIC = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_FLOAT = re.compile(r"-?\d+(?:\.\d*)?[eE][+-]?\d+|NaN|-?Infinity", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME_ZONE = re.compile(r"(?:Z|[+-]\d\d(?::?\d\d)?)$")


class OddCell(NamedTuple):
    """The only value of a column that keeps it from having another type than text, and its row, counted from 1."""

    column: str
    row: int
    value: str
    other_type: str


def create_table(db: Client, table: str, types: Mapping[str, str], key: Sequence[str]) -> None:
    """Creates the table, with columns of these types and this primary key, if there is one."""
    unknown = [name for name in key if name not in types]
    if unknown:
        raise ValueError(f"--primary-key: the file has no column {unknown[0]!r}. Its columns are {', '.join(types)}.")
    too_long = next((name for name in types if len(name.encode()) > _NAME_BYTES_MAX), None)
    if too_long:
        raise ValueError(f"The name of a column has at most {_NAME_BYTES_MAX} bytes: {too_long!r} is longer.")
    parts = [f"{quoted(name)} {each}" for name, each in types.items()]
    if key:
        parts.append(f"primary key ({', '.join(map(quoted, key))})")
    db.query(f"create table {table} ({', '.join(parts)})")


def in_lower_case(types: Mapping[str, str]) -> dict[str, str]:
    """The same columns with names in lower case, so that their capitals need no quotation marks in SQL."""
    renamed = {name.lower(): each for name, each in types.items()}
    if len(renamed) < len(types):
        raise ValueError("--lower-case: two columns of the file differ in case alone.")
    return renamed


def fitting_types(columns: Sequence[str], batch: Batch | None, *, is_csv: bool) -> dict[str, str]:
    """The types that fit the values of a batch."""
    values = _values(columns, batch, is_csv=is_csv)
    return {
        name: type_of((value for _, value in each), from_text=is_csv)
        for name, each in zip(columns, values, strict=True)
    }


def odd_cells(columns: Sequence[str], batch: Batch | None, *, is_csv: bool) -> Iterator[OddCell]:
    """The values without which a column of the batch would have had another type than text."""
    for name, values in zip(columns, _values(columns, batch, is_csv=is_csv), strict=True):
        kinds = [_kind(value, from_text=is_csv) for _, value in values]
        rest = _common(set(kinds) - {"text"})
        # Of two values, neither is the odd one.
        if kinds.count("text") == 1 and len(kinds) > 2 and _common(set(kinds)) == "text" != rest:
            row, value = values[kinds.index("text")]
            yield OddCell(name, row, str(value), rest)


def _values(columns: Sequence[str], batch: Batch | None, *, is_csv: bool) -> list[list[tuple[int, Any]]]:
    """The values of each column in the batch, with their rows, without NULL."""
    if batch is None:
        return [[] for _ in columns]
    if is_csv:
        rows = [line.split(batch.field_separator) for line in batch.text.split(batch.row_separator)]
        by_column = [[None if each == batch.null else each for each in values] for values in zip(*rows, strict=True)]
    else:
        objects = [json.loads(line, parse_float=_Number, parse_int=_Number) for line in batch.text.split("\n")]
        by_column = [[each.get(name) for each in objects] for name in columns]
    return [[each for each in enumerate(values, batch.first_row) if each[1] is not None] for values in by_column]


class _Number(str):
    """A number, as it is written."""

    __slots__ = ()


def type_of(values: Iterable[Any], *, from_text: bool = True) -> str:
    """The narrowest type that holds all of these values: text for none of them.

    Without `from_text`, a string is never taken for a number or a bool, as in JSON, which has these.
    """
    return _common({_kind(value, from_text=from_text) for value in values})


def _common(kinds: set[str]) -> str:
    """The narrowest type that holds values of all these types."""
    if len(kinds) == 1:
        return next(iter(kinds))
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
