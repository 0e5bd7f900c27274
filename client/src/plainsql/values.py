"""Values, both ways: what an answer's JSON stands for in Python, and a parameter in JSON.

Owns the table of types. A value is read by its column's type, never by what it looks like, so that a column has one
Python type: whole numbers and numerics are exact. Refuses to guess: a type that is not in the table stays what JSON
made of it, which for PostgreSQL's other types is their text.

| PostgreSQL | Python |
|---|---|
| bool; int2, int4, int8, oid | bool; int |
| numeric | Decimal |
| float4, float8 | float |
| timestamptz, timestamp, date, time | datetime (UTC or naive), date, time; infinity and far years stay text |
| interval | timedelta, a month as 30 days and a year as 365 |
| bytea | bytes |
| uuid | UUID |
| json, jsonb | what the JSON says |
| arrays | lists of these; int2vector and oidvector lists of int |
| all others | str, PostgreSQL's text |
"""

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

Reader = Callable[[Any], Any]

_DECODER = json.JSONDecoder(parse_float=Decimal)
_DURATION = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)


def decode_json(text: bytes | str) -> Any:
    """JSON with every digit: numbers with a point become Decimal until their column's type is known."""
    return _DECODER.decode(text.decode() if isinstance(text, bytes) else text)


@lru_cache(maxsize=256)
def row_readers(types: tuple[str, ...]) -> tuple[tuple[int, Reader], ...]:
    """The columns that need reading, and how."""
    readers = ((index, _reader(name)) for index, name in enumerate(types))
    return tuple((index, reader) for index, reader in readers if reader is not None)


def read_rows(rows: list[list[Any]], types: tuple[str, ...]) -> None:
    """Turns the values of these rows into Python's, in place."""
    for index, reader in row_readers(types):
        for row in rows:
            if (value := row[index]) is not None:
                row[index] = reader(value)


def _reader(type_name: str) -> Reader | None:
    if type_name.endswith("[]"):
        element = _reader(type_name.removesuffix("[]"))
        return None if element is None else _array_reader(element)
    return _READERS.get(type_name)


def _array_reader(element: Reader) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(each) for each in value]
        return None if value is None else element(value)

    return read


def _datetime(text: str) -> Any:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        # Infinity, or a year that Python's calendar lacks.
        return text


def _date(text: str) -> Any:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return text


def _time(text: str) -> Any:
    try:
        return dt.time.fromisoformat(text)
    except ValueError:
        # 24:00:00 is a time of PostgreSQL's.
        return text


def _interval(text: str) -> Any:
    match = _DURATION.fullmatch(text)
    if match is None:
        return text
    years, months, weeks, days, hours, minutes = (int(part or 0) for part in match.groups()[:6])
    whole_days = years * 365 + months * 30 + weeks * 7 + days
    try:
        microseconds = int(Decimal(match[7] or 0) * 1_000_000)
        return dt.timedelta(days=whole_days, hours=hours, minutes=minutes, microseconds=microseconds)
    except OverflowError:
        return text


def _uuid(text: str) -> Any:
    from uuid import UUID  # noqa: PLC0415  # not needed by most programs, and slow to import

    return UUID(text)


def _vector(text: str) -> list[int]:
    """The catalogs' own kind of array."""
    return [int(each) for each in text.split()]


def _plain_json(value: Any) -> Any:
    """JSON as Python's json module reads it: numbers with a point are floats."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain_json(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain_json(each) for name, each in value.items()}
    return value


_READERS: dict[str, Reader] = {
    "numeric": Decimal,
    "float4": float,
    "float8": float,
    "timestamptz": _datetime,
    "timestamp": _datetime,
    "date": _date,
    "time": _time,
    "interval": _interval,
    "bytea": base64.b64decode,
    "uuid": _uuid,
    "int2vector": _vector,
    "oidvector": _vector,
    "json": _plain_json,
    "jsonb": _plain_json,
}


def encode_params(params: Sequence[Any]) -> list[Any]:
    """Parameters as what `json.dumps` writes."""
    return [encode_param(each) for each in params]


def encode_param(value: Any) -> Any:
    """One parameter: JSON's own kinds stay, others become PostgreSQL's text input."""
    if isinstance(value, Enum):
        return encode_param(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    writer = _WRITERS.get(type(value)) or next((_WRITERS[kind] for kind in _WRITERS if isinstance(value, kind)), None)
    if writer is not None:
        return writer(value)
    if type(value).__module__ in ("uuid", "ipaddress"):
        return str(value)
    if hasattr(value, "tolist"):
        # NumPy's scalars and arrays know the Python values that they hold.
        return encode_param(value.tolist())
    raise TypeError(f"A parameter cannot be a {type(value).__name__}: {value!r}")


def _encode_float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_timedelta(value: dt.timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _encode_mapping(value: dict[str, Any]) -> dict[str, Any]:
    """A document for json or jsonb; a Decimal in it would lose digits or become a string, so it is refused."""
    json.dumps(value, allow_nan=False)
    return value


_WRITERS: dict[type, Callable[[Any], Any]] = {
    float: _encode_float,
    Decimal: str,
    list: encode_params,
    tuple: encode_params,
    dict: _encode_mapping,
    bytes: lambda value: "\\x" + value.hex(),
    bytearray: lambda value: "\\x" + value.hex(),
    memoryview: lambda value: "\\x" + value.hex(),
    dt.datetime: dt.datetime.isoformat,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: _encode_timedelta,
}
