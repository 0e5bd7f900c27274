"""Readers for types whose Python modules are slow to import: dates, times, intervals and UUIDs.

`values.py` imports this module when a result first has such a column.
"""

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

_DURATION = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)


def _datetime(text: str) -> Any:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        # Infinity, or a year outside the range of Python's datetime.
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
        # PostgreSQL allows 24:00:00; Python does not.
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


READERS: dict[str, Callable[[Any], Any]] = {
    "timestamptz": _datetime,
    "timestamp": _datetime,
    "date": _date,
    "time": _time,
    "timetz": _time,
    "interval": _interval,
    "uuid": UUID,
}
