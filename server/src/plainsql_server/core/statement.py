"""A statement: SQL text and its parameters; and the little of SQL that can be read without a parser.

Owns the finding of a statement's first words, past white space, comments (which nest in PostgreSQL) and
stray semicolons, and the list of commands that have no place in a request. Refuses to parse further: the
engine is the only authority on SQL.
"""

import re
from collections.abc import Sequence

from plainsql_server.core.errors import RequestError

# What PostgreSQL's lexer takes for white space, and the semicolons that its parser skips.
_BLANK = re.compile(r"[ \t\n\r\f\v;]*")
_END_OF_LINE = re.compile(r"[\n\r]")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_STREAM_HINT = re.compile(r"/\*\+\s*STREAM\s*\*/", re.IGNORECASE)
# A word that runs on into letters beyond ASCII is a name, never a keyword.
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9$]*+(?![^\x00-\x7f])")

# How far into a text its first words may be: everybody else's requests wait while it is looked for them.
MAX_PREAMBLE_LENGTH = 64 * 1024

_TRANSACTION_HINT = "Send the statements together to POST /v1/transaction, which begins and commits for you."
_TRANSACTION_CONTROL = frozenset(["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"])
_NOTIFICATION = frozenset(["LISTEN", "UNLISTEN", "NOTIFY"])
_HAS_NO_PLACE = _TRANSACTION_CONTROL | _NOTIFICATION | {"COPY"}
_HAVE_NO_PLACE = (["PREPARE", "TRANSACTION"], ["SET", "TRANSACTION"])
_MEAN_NOTHING_ALONE = frozenset(words[0] for words in _HAVE_NO_PLACE)


class Statement:
    """One SQL statement. A parameter is the raw JSON that the caller sent for it."""

    __slots__ = ("params", "sql")

    def __init__(self, sql: str, params: Sequence[bytes] = ()) -> None:
        self.sql = sql
        self.params = params


def first_words(sql: str, count: int = 2) -> list[str]:
    """The first keywords of a statement, in upper case; fewer than `count` where something else follows.

    Raises RequestError where too much stands before one that matters.
    """
    words: list[str] = []
    position = 0
    while len(words) < count:
        try:
            position = _skip_blanks_and_comments(sql, position)
        except RequestError:
            if not words or words[0] in _MEAN_NOTHING_ALONE:
                raise
            break
        match = _WORD.match(sql, position)
        if match is None:
            break
        words.append(match[0].upper())
        position = match.end()
    return words


def is_empty(sql: str) -> bool:
    """Whether a text holds no statement: nothing but white space, comments and semicolons."""
    return _skip_blanks_and_comments(sql, 0) == len(sql)


def without_stream_hint(sql: str) -> str | None:
    """The statement with blanks where its streaming hint stood, so that positions stay; None if it has none.

    The hint must come before the statement's first word; white space and other comments may come before it.
    """
    position = 0
    while True:
        position = _BLANK.match(sql, position).end()  # type: ignore[union-attr]  # the pattern matches nothing, too
        if position > MAX_PREAMBLE_LENGTH:
            raise _long_preamble()
        if sql.startswith("--", position):
            position = _end_of_line(sql, position)
        elif (hint := _STREAM_HINT.match(sql, position)) is not None:
            return sql[:position] + " " * len(hint[0]) + sql[hint.end() :]
        elif sql.startswith("/*", position):
            position = _end_of_comment(sql, position)
        else:
            return None


def refuse_what_has_no_place(sql: str) -> list[str]:
    """The statement's first two keywords, or as many as it has.

    Raises RequestError for transaction control, notifications and COPY, which mean nothing without a
    connection of one's own, and for text that PostgreSQL cannot hold.
    """
    if "\0" in sql:
        raise RequestError("null_character", "The SQL text contains a NUL character; PostgreSQL has no place for it.")
    words = first_words(sql)
    first = words[0] if words else ""
    if first in _HAS_NO_PLACE or words in _HAVE_NO_PLACE:
        raise _no_place(words)
    return words


def _no_place(words: list[str]) -> RequestError:
    if words[0] in _NOTIFICATION:
        return RequestError("listen_not_supported", f"{words[0]} isn't supported: it needs a persistent connection.")
    if words[0] == "COPY":
        return RequestError(
            "copy_not_supported",
            "COPY isn't supported.",
            hint="Use INSERT with parameters to write, and SELECT to read.",
        )
    command = words[0] if words[0] in _TRANSACTION_CONTROL else " ".join(words)
    return RequestError("transaction_control", f"{command} isn't allowed here.", hint=_TRANSACTION_HINT)


def _skip_blanks_and_comments(sql: str, position: int) -> int:
    while True:
        position = _BLANK.match(sql, position).end()  # type: ignore[union-attr]  # the pattern matches nothing, too
        if position > MAX_PREAMBLE_LENGTH:
            raise _long_preamble()
        if sql.startswith("--", position):
            position = _end_of_line(sql, position)
        elif sql.startswith("/*", position):
            position = _end_of_comment(sql, position)
        else:
            return position


def _end_of_line(sql: str, position: int) -> int:
    end = _END_OF_LINE.search(sql, position)
    return len(sql) if end is None else end.start()


def _end_of_comment(sql: str, position: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, position):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
        if edge.end() > MAX_PREAMBLE_LENGTH:
            raise _long_preamble()
    return len(sql)


def _long_preamble() -> RequestError:
    return RequestError(
        "malformed_request",
        f"A statement's first words must come within the first {MAX_PREAMBLE_LENGTH} characters of its text.",
        hint="Move white space and comments behind them.",
    )
