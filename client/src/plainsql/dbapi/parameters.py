"""Converts `%s` and `%(name)s` placeholders to `$1`, `$2`, …

This does not parse SQL: in a statement with parameters, every `%` counts, even in string literals; `%%` is a literal
percent sign.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from plainsql.dbapi.exceptions import ProgrammingError

_PLACEHOLDER = re.compile(r"%(?:(?P<escaped>%)|\((?P<name>[^)]+)\)s|(?P<next>s)|(?P<wrong>.|$))", re.DOTALL)


def numbered(sql: str, params: Sequence[Any] | Mapping[str, Any] | None) -> tuple[str, list[Any]]:
    """The statement with numbered parameters, and their values in that order."""
    if params is None:
        return sql, []
    return _by_name(sql, params) if isinstance(params, Mapping) else _by_position(sql, params)


def _by_position(sql: str, params: Sequence[Any]) -> tuple[str, list[Any]]:
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        if match["escaped"]:
            return "%"
        if not match["next"]:
            raise ProgrammingError(f"Invalid placeholder {match[0]!r}: use %s, and %% for a percent sign.")
        count += 1
        return f"${count}"

    text = _PLACEHOLDER.sub(replace, sql)
    if count != len(params):
        raise ProgrammingError(f"The statement has {count} placeholders, but got {len(params)} parameters.")
    return text, list(params)


def _by_name(sql: str, params: Mapping[str, Any]) -> tuple[str, list[Any]]:
    places: dict[str, int] = {}

    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "%"
        if not match["name"]:
            raise ProgrammingError(f"Invalid placeholder {match[0]!r}: use %(name)s, and %% for a percent sign.")
        return f"${places.setdefault(match['name'], len(places) + 1)}"

    text = _PLACEHOLDER.sub(replace, sql)
    missing = [name for name in places if name not in params]
    if missing:
        raise ProgrammingError(f"Missing parameter {missing[0]!r}.")
    return text, [params[name] for name in places]
