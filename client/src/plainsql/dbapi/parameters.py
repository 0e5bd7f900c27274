"""Converts `%s` and `%(name)s` placeholders to `$1`, `$2`, …

This does not parse SQL: in a statement with parameters, every `%` counts, even in string literals; `%%` is a literal
percent sign.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plainsql.dbapi.exceptions import ProgrammingError

_PLACEHOLDER = re.compile(r"%(?:(?P<escaped>%)|\((?P<name>[^)]+)\)s|(?P<next>s)|(?P<wrong>.|$))", re.DOTALL)


def numbered(sql: str, params: Sequence[Any] | Mapping[str, Any] | None) -> tuple[str, list[Any]]:
    """The statement with numbered parameters, and their values in that order."""
    if params is None:
        return sql, []
    return _by_name(sql, params) if isinstance(params, Mapping) else _by_position(sql, params)


def numbered_many(sql: str, sets: Iterable[Sequence[Any] | Mapping[str, Any]]) -> tuple[str, list[list[Any]]]:
    """The same for many sets of parameters, which are all sequences or all mappings."""
    remaining = iter(sets)
    first = next(remaining, None)
    if first is None:
        return sql, []
    text, values = numbered(sql, first)
    if not isinstance(first, Mapping):
        return text, [values, *(_checked(each, len(values)) for each in remaining)]
    names = list(_places(sql))
    return text, [values, *(_values(names, each) for each in remaining)]


def _checked(params: Any, count: int) -> list[Any]:
    if isinstance(params, Mapping) or len(params) != count:
        raise ProgrammingError(f"The statement has {count} placeholders, but got {len(params)} parameters.")
    return list(params)


def _values(names: Iterable[str], params: Any) -> list[Any]:
    if not isinstance(params, Mapping):
        raise ProgrammingError("The statement has named placeholders, but got a sequence of parameters.")
    if missing := [name for name in names if name not in params]:
        raise ProgrammingError(f"Missing parameter {missing[0]!r}.")
    return [params[name] for name in names]


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
    places = _places(sql)
    text = _PLACEHOLDER.sub(lambda match: "%" if match["escaped"] else f"${places[match['name']]}", sql)
    return text, _values(places, params)


def _places(sql: str) -> dict[str, int]:
    """The names of the placeholders, with their numbers."""
    places: dict[str, int] = {}
    for match in _PLACEHOLDER.finditer(sql):
        if match["name"]:
            places.setdefault(match["name"], len(places) + 1)
        elif not match["escaped"]:
            raise ProgrammingError(f"Invalid placeholder {match[0]!r}: use %(name)s, and %% for a percent sign.")
    return places
