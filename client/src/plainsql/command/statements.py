"""Splits text into statements at semicolons outside of strings, quoted names and comments.

It also recognizes the shell's commands, the statements that begin and end a transaction, and parameters, and
understands no more of SQL than that.
"""

import re
from collections.abc import Sequence

from plainsql.statements import first_word

# A semicolon inside one of these does not end a statement: strings, quoted names, dollar quotes, comments. An unclosed
# one extends to the end of the text.
_OPAQUE = re.compile(
    r"""
      (?P<command>^[ \t]*(?:\\[^\n]*|(?i:help|exit|quit)[ \t]*;?[ \t\r]*)$)
    | (?<![\w$])[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)
    | '(?:[^']|'')*(?:'|\Z)
    | "(?:[^"]|"")*(?:"|\Z)
    | --[^\n]*
    | (?<![\w$])(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=tag)|\Z)
    | /\*
    | ;
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_TRANSACTION = re.compile(
    r"\s*(begin|start\s+transaction|commit|end|rollback|abort)"
    r"(?:\s+(?:work|transaction|isolation\s+level\s+[a-z ]+|read\s+write))*\s*;?\s*",
    re.IGNORECASE,
)
_PARAM = re.compile(r"(?<![\w$])\$0*([1-9][0-9]*)")
# In its body, $1 is the function's own.
_FUNCTION = re.compile(r"\s*create\s+(?:or\s+replace\s+)?(?:function|procedure)\b", re.IGNORECASE)


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon (without it), and the remaining text.

    A line that is one of the shell's commands, such as `\\d` or `exit`, is one, too, unless it is within a statement.
    """
    statements: list[str] = []
    start = at = 0
    while match := _OPAQUE.search(text, at):
        at = match.end()
        if match[0] == "/*":
            at = _comment_end(text, at)
        elif match["command"] is not None:
            if first_word(text[start : match.start()]):
                at = match.start() + 1
            else:
                statements.append(match[0].strip())
                start = at
        elif match[0] == ";":
            if text[start : match.start()].strip():
                statements.append(text[start : match.start()].strip())
            start = at
    return statements, text[start:].strip()


def all_statements(text: str) -> list[str]:
    """The statements of a text. The last one needs no semicolon. A rest that is only comments is none."""
    statements, rest = split_statements(text)
    return [*statements, *([rest] if first_word(rest) else [])]


def params_used(sql: str) -> list[int]:
    """The numbers of the parameters in a statement, in ascending order."""
    if _FUNCTION.match(_COMMENT.sub(" ", sql)):
        return []
    return sorted({int(match[1]) for part in _visible_parts(sql)[::2] for match in _PARAM.finditer(part)})


def renumbered(sql: str, params: Sequence[str]) -> tuple[str, list[str]]:
    """The statement with its own parameters numbered from 1, and their values among `params`."""
    used = params_used(sql)
    numbers = {number: at for at, number in enumerate(used, 1)}
    parts = _visible_parts(sql)
    if used != list(numbers.values()):
        parts[::2] = [_PARAM.sub(lambda match: f"${numbers[int(match[1])]}", part) for part in parts[::2]]
    return "".join(parts), [params[number - 1] for number in used]


def _visible_parts(sql: str) -> list[str]:
    """The text split into what PostgreSQL parses and, at odd places, strings, quoted names and comments."""
    parts, at = [], 0
    while match := _OPAQUE.search(sql, at):
        end = _comment_end(sql, match.end()) if match[0] == "/*" else match.end()
        parts += [sql[at : match.start()], sql[match.start() : end]]
        at = end
    return [*parts, sql[at:]]


def transaction_word(sql: str) -> str:
    """BEGIN, COMMIT or ROLLBACK if this statement does that to the whole transaction; otherwise empty."""
    match = _TRANSACTION.fullmatch(_COMMENT.sub(" ", sql))
    if match is None:
        return ""
    word = match[1].split()[0].upper()
    return {"START": "BEGIN", "END": "COMMIT", "ABORT": "ROLLBACK"}.get(word, word)


def _comment_end(text: str, at: int) -> int:
    """The end of a block comment; PostgreSQL allows nested ones."""
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)
