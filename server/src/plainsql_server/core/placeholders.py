"""Hints for SQL that PostgreSQL rejected because its parameters are written as another interface writes them.

    hint_for(sql, "42601", position)    # for `where id = %s`, at the `%`: write $1

PostgreSQL's messages name an operator or a column `s`. Only the text around the position that it reports is looked at.
"""

import re

_UNDEFINED_COLUMN = "42703"
_SYNTAX_ERROR = "42601"

_PARAMETERS = (
    "Write parameters as $1, $2, … Only the DB-API module has %s and %(name)s, and only SQLAlchemy's text() has :name."
)
_LIST = "For a list of values, write = ANY($1) instead of IN, and pass the list as one parameter."
# How much of the text before the position is looked at.
_BEFORE = 80

_OTHER = re.compile(r"%s\b|%\(\w{1,63}\)s\b|:[A-Za-z_]|\?")
_S = re.compile(r"s\b")
_NUMBERED = re.compile(r"\$\d")
_IN = re.compile(r"\bin\s*$", re.IGNORECASE)
_MARK = re.compile(r"\?\s*$")


def hint_for(sql: str, sqlstate: str | None, position: int | None) -> str | None:
    """A hint for an error at this position, counted from 1; None if parameters are not the reason."""
    if position is None:
        return None
    at = position - 1
    before = sql[max(0, at - _BEFORE) : at]
    if sqlstate == _SYNTAX_ERROR and _NUMBERED.match(sql, at) and _IN.search(before):
        return _LIST
    if sqlstate == _SYNTAX_ERROR and (_OTHER.match(sql, at) or _MARK.search(before)):
        return _PARAMETERS
    # As in `price %s`, which is an operator and a column.
    if sqlstate == _UNDEFINED_COLUMN and before.endswith("%") and _S.match(sql, at):
        return _PARAMETERS
    return None
