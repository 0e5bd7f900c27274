"""Sizes, durations and times as people read them, for tables and messages. Other formats keep the exact values."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
# Written for people, and the part of a column's name that says so for programs.
_SUFFIXES = ("_bytes", "_us", "_at")


def readable_size(size_bytes: int) -> str:
    """A size in units of 1,024, as PostgreSQL's `pg_size_pretty` has them: `8 kB`."""
    size, unit = float(size_bytes), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 10 else f"{size:.1f} {_UNITS[unit]}"


def readable_duration(microseconds: float) -> str:
    """A duration in the unit that suits it: `240 µs`, `4.2 ms`, `12.5 s`, `3 min 20 s`."""
    if microseconds < 1_000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1_000:.1f} ms"
    seconds = microseconds / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def readable_time(text: str) -> str:
    """A time of the service, in seconds and in UTC: `2026-11-17 15:26:16 UTC`."""
    day, _, time = text.partition("T")
    return f"{day} {time[:8]} UTC" if time.endswith("Z") else text


def readable_name(column: str) -> str:
    """The heading for a column, without the unit."""
    return next((column.removesuffix(each) for each in _SUFFIXES if column.endswith(each)), column)


def readable_value(column: str, value: object) -> object:
    """The value of a column whose name ends with its unit."""
    if column.endswith("bytes") and isinstance(value, int):
        return readable_size(value)
    if column.endswith("_us") and isinstance(value, int | float):
        return readable_duration(value)
    is_time = column == "at" or column.endswith("_at")
    return readable_time(value) if is_time and isinstance(value, str) else value
