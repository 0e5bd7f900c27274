"""What can be read from SQL without a parser.

Finds a statement's first keywords, after white space, comments (which nest in PostgreSQL) and stray semicolons, and
rejects commands that are not allowed in a request. Nothing else is parsed here: PostgreSQL is the only authority on
SQL.
"""

import re

from plainsql_server.core.errors import RequestError

# What PostgreSQL's lexer treats as white space, and the semicolons that its parser skips.
_BLANK = re.compile(r"[ \t\n\r\f\v;]*")
_END_OF_LINE = re.compile(r"[\n\r]")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_STREAM_HINT = re.compile(r"/\*\+\s*STREAM\s*\*/", re.IGNORECASE)
# A word that continues with non-ASCII letters is a name, never a keyword.
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9$]*+(?![^\x00-\x7f])")

# How far to search for the first keywords. The search blocks the event loop, and with it all other requests.
MAX_PREAMBLE_LENGTH = 64 * 1024

_TRANSACTION_HINT = "Send the statements together to POST /v1/transaction, without BEGIN and COMMIT."
_TRANSACTION_CONTROL = frozenset(["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"])
_NOTIFICATION = frozenset(["LISTEN", "UNLISTEN", "NOTIFY"])
_HAS_NO_PLACE = _TRANSACTION_CONTROL | _NOTIFICATION | {"COPY"}
_HAVE_NO_PLACE = (["PREPARE", "TRANSACTION"], ["SET", "TRANSACTION"])
_MEAN_NOTHING_ALONE = frozenset(words[0] for words in _HAVE_NO_PLACE)


def first_words(sql: str, count: int = 2) -> list[str]:
    """The first keywords of a statement in upper case; fewer than `count` if something else follows them.

    Raises RequestError if too much white space or comment precedes a keyword that matters.
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
    """Whether a text contains no statement: only white space, comments and semicolons."""
    return _skip_blanks_and_comments(sql, 0) == len(sql)


def without_stream_hint(sql: str) -> str | None:
    """Replaces the streaming hint with blanks, so that error positions stay valid. Returns None if there is no hint.

    The hint must precede the statement's first word. White space and other comments may precede the hint.
    """
    position = 0
    while True:
        position = _BLANK.match(sql, position).end()  # type: ignore[union-attr]  # it always matches
        if position > MAX_PREAMBLE_LENGTH:
            raise _long_preamble()
        if sql.startswith("--", position):
            position = _end_of_line(sql, position)
        elif (hint := _STREAM_HINT.match(sql, position)) is not None:
            return sql[:position] + " " * len(hint[0]) + sql[hint.end() :]
        elif sql.startswith("/*", position):
            position = _end_of_preamble_comment(sql, position)
        else:
            return None


def refuse_stream_hint(sql: str) -> None:
    """Raises RequestError if the statement of a transaction has the streaming hint."""
    if "/*+" in sql and without_stream_hint(sql) is not None:
        raise RequestError(
            "stream_in_transaction",
            "A statement of a transaction can't be streamed: no row is sent before the commit.",
            hint="Remove /*+ STREAM */, or send the statement by itself to POST /v1/query.",
        )


def refuse_what_has_no_place(sql: str) -> list[str]:
    """Returns the statement's first two keywords, or fewer if it has fewer.

    Raises RequestError for transaction control, notifications and COPY, which need a connection that lasts longer than
    a request, and for text with a NUL character.
    """
    if "\0" in sql:
        raise RequestError("null_character", "The SQL text contains a NUL character, which PostgreSQL doesn't accept.")
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
        position = _BLANK.match(sql, position).end()  # type: ignore[union-attr]  # it always matches
        if position > MAX_PREAMBLE_LENGTH:
            raise _long_preamble()
        if sql.startswith("--", position):
            position = _end_of_line(sql, position)
        elif sql.startswith("/*", position):
            position = _end_of_preamble_comment(sql, position)
        else:
            return position


def _end_of_line(sql: str, position: int) -> int:
    end = _END_OF_LINE.search(sql, position)
    return len(sql) if end is None else end.start()


def end_of_comment(sql: str, position: int, limit: int) -> int:
    """Returns where a comment ends that starts here, and the comments in it, or -1 if not before the limit."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, position, limit):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return -1


def _end_of_preamble_comment(sql: str, position: int) -> int:
    end = end_of_comment(sql, position, MAX_PREAMBLE_LENGTH)
    if end < 0 and len(sql) > MAX_PREAMBLE_LENGTH:
        raise _long_preamble()
    return end if end >= 0 else len(sql)


def _long_preamble() -> RequestError:
    return RequestError(
        "malformed_request",
        f"The first keywords of a statement must be within the first {MAX_PREAMBLE_LENGTH} characters of its text.",
        hint="Move white space and comments after the keywords.",
    )
