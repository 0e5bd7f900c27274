"""Encodes Python values as parameters.

JSON's own types are sent as they are. Other values are sent as text that PostgreSQL can read. A value without such a
text raises TypeError.
"""

import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

from plainsql.values import LongInteger, encode_json

# pandas' values for NULL. Its NaT is a subclass of datetime.
_SENT_AS_THEY_ARE = frozenset([str, int, bool, type(None)])
_ABSENT = frozenset(["NaTType", "NAType"])


def encode_params(params: Sequence[Any]) -> list[Any]:
    """Encodes parameters as values for `encode_json`."""
    return [encode_param(each) for each in params]


def encode_param(value: Any) -> Any:
    """Encodes one parameter: JSON's own types stay, others become text that PostgreSQL can read."""
    kind: Any = type(value)
    return value if kind in _SENT_AS_THEY_ARE else _writer(kind)(value)


# Finding a writer takes longer than writing, and many rows have few types.
@lru_cache(maxsize=256)
def _writer(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return lambda value: encode_param(value.value)
    if issubclass(kind, str | int | LongInteger):
        return lambda value: value
    if kind.__name__ in _ABSENT and kind.__module__.startswith("pandas."):
        return lambda _: None
    found = _WRITERS.get(kind) or next((_WRITERS[base] for base in _WRITERS if issubclass(kind, base)), None)
    if found is not None:
        return found
    if kind.__module__ in ("uuid", "ipaddress"):
        return str
    if kind.__name__ == "datetime64":
        return _encode_datetime64
    if hasattr(kind, "tolist"):
        # NumPy scalars and arrays convert themselves to Python values.
        return lambda value: encode_param(value.tolist())
    return _refuse


def _encode_datetime64(value: Any) -> str | None:
    """NumPy converts those with nanoseconds to a number, not to a datetime."""
    text = str(value)
    return None if text == "NaT" else text


def _refuse(value: Any) -> None:
    raise TypeError(f"Unsupported parameter type {type(value).__name__}: {value!r}")


def _encode_float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_timedelta(value: dt.timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _encode_mapping(value: dict[str, Any]) -> dict[str, Any]:
    """A json or jsonb document. A Decimal in it raises TypeError, because it would lose digits or become a string."""
    encode_json(value)
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
