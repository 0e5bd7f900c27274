"""Hints for SQL that PostgreSQL rejected because its parameters are written as another interface writes them.

    hint_for(sql, "42703", position)    # for `where id = %s`, at the `s`: write $1

PostgreSQL takes `%s` for an operator and a column `s`, so its message does not help. Only the text around the position
that it reports is looked at.
"""

import re

_UNDEFINED_COLUMN = "42703"
_SYNTAX_ERROR = "42601"

_PARAMETERS = (
    "Write parameters as $1, $2, … Only the DB-API module has %s and %(name)s, and only SQLAlchemy's text() has :name."
)
_LIST = "For a list of values, write = ANY($1) instead of IN, and pass the list as one parameter."
# How much of the text before the position is looked at. Names have up to 63 characters.
_BEFORE = 80

_S = re.compile(r"s\b")
_COLON_NAME = re.compile(r":[A-Za-z_]")
_NUMBERED = re.compile(r"\$\d")
_OPENED = re.compile(r"%\($")
_NAMED = re.compile(r"%\(\w+\)$")
_IN = re.compile(r"\bin$", re.IGNORECASE)
_MARK = re.compile(r"\?\s*$")


def hint_for(sql: str, sqlstate: str | None, position: int | None) -> str | None:
    """A hint for an error at this position, counted from 1; None if parameters are not the reason."""
    if position is None or sqlstate not in (_UNDEFINED_COLUMN, _SYNTAX_ERROR):
        return None
    at = position - 1
    before = sql[max(0, at - _BEFORE) : at]
    if sqlstate == _UNDEFINED_COLUMN:
        is_other = (before.endswith("%") and _S.match(sql, at)) or _OPENED.search(before)
        return _PARAMETERS if is_other else None
    if _NUMBERED.match(sql, at) and _IN.search(before.rstrip()):
        return _LIST
    is_other = (
        _COLON_NAME.match(sql, at) or _MARK.search(before) or (_NAMED.search(before) and _S.match(sql, at))
    )  # fmt: skip
    return _PARAMETERS if is_other else None
