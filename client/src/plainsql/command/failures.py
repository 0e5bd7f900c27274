"""Prints errors: the statement with a caret at PostgreSQL's error position, the hint, the code and the request id.

Also prints PostgreSQL's notices and warnings as psql does, and maps errors to exit codes. Any other exception is a bug
and keeps its traceback.
"""

import sys
from collections.abc import Iterable

from plainsql.command import EXIT_FAILED, EXIT_USAGE
from plainsql.command.tables import visible, width
from plainsql.command.terminal import paint
from plainsql.errors import Error, Notice, ServiceError

# Fits most terminals, and is short enough to find the caret.
_LINE_CHARACTERS_MAX = 100


def exit_code_of(error: Exception) -> int:
    """The exit code for an error. Raises the error again if it is unexpected."""
    if isinstance(error, Error):
        return error.exit_code
    if isinstance(error, ValueError | OSError):
        return EXIT_USAGE
    if isinstance(error, ImportError):
        return EXIT_FAILED
    raise error


def show(error: Exception) -> None:
    """Prints an error to standard error, after the notices of the statement that failed."""
    show_notices(getattr(error, "notices", ()))
    print("\n".join(lines_of(error)), file=sys.stderr)


def show_notices(notices: Iterable[Notice]) -> None:
    """Prints notices to standard error: `NOTICE:  …`."""
    for notice in notices:
        print(visible(str(notice), keep="\n"), file=sys.stderr)


def lines_of(error: Exception) -> list[str]:
    """The lines to print for an error."""
    if not isinstance(error, ServiceError):
        return [paint("red", "Error: ") + visible(str(error), keep="\n"), *_outcome(error)]
    lines = [paint("red", "Error: ") + visible(error.message, keep="\n")]
    if error.sql is not None and error.position is not None:
        lines += pointed_at(error.sql, error.position)
    if error.statement_index is not None:
        lines.append(visible(f"Statement {error.place}"))
    more = (("Detail", error.detail), ("Hint", error.hint))
    lines += [f"{name}: {visible(value, keep=chr(10))}" for name, value in more if value]
    code = f"{error.code} ({error.sqlstate})" if error.sqlstate else error.code
    lines.append(paint("dim", visible(f"Code: {code}  Request: {error.request_id or '-'}")))
    return lines + _outcome(error)


def _outcome(error: Exception) -> list[str]:
    """The outcome, shown only if the write was committed or may have been."""
    outcome = getattr(error, "outcome", None)
    if outcome not in ("unknown", "committed"):
        return []
    key = getattr(error, "idempotency_key", None)
    return [f"Outcome: {outcome}" + (f"  Idempotency key: {key}" if key else "")]


def pointed_at(sql: str, position: int) -> list[str]:
    """The line of the statement that contains `position` (in characters, from 1), and a caret below it."""
    before = sql[: position - 1]
    start = before.rfind("\n") + 1
    end = sql.find("\n", position - 1)
    # Each character is replaced by exactly one, so the caret stays aligned.
    line = "".join(each if each.isprintable() else " " for each in sql[start : None if end < 0 else end])
    column = position - 1 - start
    if column > _LINE_CHARACTERS_MAX * 3 // 4:
        cut = column - _LINE_CHARACTERS_MAX // 2
        line, column = "…" + line[cut:], column - cut + 1
    if len(line) > _LINE_CHARACTERS_MAX:
        line = line[: _LINE_CHARACTERS_MAX - 1] + "…"
    prefix = f"Line {before.count(chr(10)) + 1}: "
    return [prefix + line, " " * (len(prefix) + width(line[:column])) + paint("red", "^")]
