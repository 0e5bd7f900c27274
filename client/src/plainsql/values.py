"""Converts the values in a response to Python values. `parameters.py` does the reverse.

A value is converted by its column's type, never by its appearance, so a column has one Python type. Integers and
numerics are exact. Types that are not in this table arrive as PostgreSQL's text.

| PostgreSQL | Python |
|---|---|
| bool; int2, int4, int8, oid | bool; int |
| numeric | Decimal, with any number of digits |
| float4, float8 | float |
| timestamptz, timestamp | datetime, in UTC or naive; infinity and years outside Python's range stay text |
| date; time, timetz | date; time, naive or with its offset; infinity, such years and 24:00 stay text |
| interval | timedelta; a month counts as 30 days, a year as 365 |
| bytea | bytes |
| uuid | UUID |
| json, jsonb | the decoded JSON; integers of more than 10,000 digits are Decimal |
| arrays | lists of these; int2vector and oidvector lists of int |
| all others | str, PostgreSQL's text |
"""

import json
from binascii import a2b_base64
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

Reader = Callable[[Any], Any]


class EncodedParams(NamedTuple):
    """Parameters as JSON, without the brackets around them. They are sent as they are."""

    text: str


class LongInteger(Decimal):
    """An integer with more digits than Python converts to int by default (`sys.set_int_max_str_digits`)."""

    __slots__ = ()


def _integer(digits: str) -> int | LongInteger:
    try:
        return int(digits)
    except ValueError:
        return LongInteger(digits)


# json.dumps would make an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_DECODER = json.JSONDecoder(parse_float=Decimal)
# Reads integers of any length, but is slower.
_LONG_DECODER = json.JSONDecoder(parse_float=Decimal, parse_int=_integer)
# Converting an integer takes time in the square of its digits: 20 ms for these, half a minute for 400,000.
_INT_DIGITS = 10_000
# The readers for these types are in `readers.py`.
_SLOW_TO_IMPORT = frozenset(["timestamptz", "timestamp", "date", "time", "timetz", "interval", "uuid"])


def decode_json(text: bytes | str) -> Any:
    """Decodes JSON without losing digits: numbers with a decimal point, and very long ones, become Decimal."""
    decoded = text.decode() if isinstance(text, bytes) else text
    try:
        return _DECODER.decode(decoded)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _LONG_DECODER.decode(decoded)


def encode_json(value: Any) -> str:
    """Encodes a value as JSON. Integers may have any number of digits."""
    try:
        return _encode(value)
    except (TypeError, ValueError):
        return _long_json(value)


def _long_json(value: Any) -> str:
    """The same, for a value that has integers with more digits than Python writes by default."""
    if isinstance(value, LongInteger) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(Decimal(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_long_json, value))}]"
    if isinstance(value, dict):
        # Names that are not strings are converted as json.dumps does it.
        names = (json.dumps({name: 0}, ensure_ascii=False)[1:-4] for name in value)
        members = zip(names, map(_long_json, value.values()), strict=True)
        return "{" + ", ".join(f"{name}: {text}" for name, text in members) + "}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=256)
def row_readers(types: tuple[str, ...]) -> tuple[tuple[int, Reader], ...]:
    """The columns whose values must be converted, and their readers."""
    readers = ((index, _reader(name)) for index, name in enumerate(types))
    return tuple((index, reader) for index, reader in readers if reader is not None)


def read_rows(rows: list[list[Any]], types: tuple[str, ...]) -> None:
    """Converts the values of these rows to Python values, in place."""
    for index, reader in row_readers(types):
        for row in rows:
            if (value := row[index]) is not None:
                row[index] = reader(value)


def _reader(type_name: str) -> Reader | None:
    if type_name.endswith("[]"):
        element = _reader(type_name.removesuffix("[]"))
        return None if element is None else _array_reader(element)
    if type_name in _SLOW_TO_IMPORT:
        from plainsql.readers import READERS  # noqa: PLC0415  # see there

        return READERS[type_name]
    return _READERS.get(type_name)


def _array_reader(element: Reader) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(each) for each in value]
        return None if value is None else element(value)

    return read


def _vector(text: str) -> list[int]:
    """Reads an int2vector or oidvector, the array types of PostgreSQL's catalogs."""
    return [int(each) for each in text.split()]


def _plain_json(value: Any) -> Any:
    """JSON as Python's json module reads it: numbers with a decimal point become floats."""
    if isinstance(value, Decimal):
        if isinstance(value, LongInteger):
            return int(value) if value.adjusted() < _INT_DIGITS else value
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
    "bytea": a2b_base64,
    "int2vector": _vector,
    "oidvector": _vector,
    "json": _plain_json,
    "jsonb": _plain_json,
}
