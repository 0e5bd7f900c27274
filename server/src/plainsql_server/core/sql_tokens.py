"""Splits SQL into tokens, as PostgreSQL's lexer does: comments nest, and strings have seven forms.

    tokens = tokens_of("select 'a' -- b")    # None if the text can't be read

White space and comments are left out. Tokens are only distinguished as far as finding keywords and parentheses needs.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

from plainsql_server.core.sql_text import end_of_comment

_LETTER = r"A-Za-z_\x80-\U0010ffff"
_TOKEN = re.compile(
    rf"""
    (?P<BLANK>(?:[ \t\n\r\f\v]++|--[^\n\r]*+)++)
    |(?P<COMMENT>/\*)
    |(?P<DOLLAR>\$(?:[{_LETTER}][{_LETTER}0-9]*+)?\$)
    |(?P<ESCAPED>[eE]'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+')
    |(?P<STRING>(?:[bBxXnN]|[uU]&)?'[^']*+(?:''[^']*+)*+')
    |(?P<UNICODE_NAME>[uU]&"[^"]*+(?:""[^"]*+)*+")
    |(?P<QUOTED_NAME>"[^"]*+(?:""[^"]*+)*+")
    |(?P<WORD>[{_LETTER}][{_LETTER}0-9$]*+)
    |(?P<PARAMETER>\$[0-9]++)
    |(?P<NUMBER>[0-9][0-9A-Za-z_.]*+)
    |(?P<SYMBOL>[^'"])
    |(?P<UNENDED>['"])
    """,
    re.VERBOSE | re.DOTALL,
)


class TokenKind(Enum):
    """The kinds of tokens."""

    WORD = auto()
    QUOTED_NAME = auto()
    UNICODE_NAME = auto()
    STRING = auto()
    ESCAPED = auto()
    PARAMETER = auto()
    NUMBER = auto()
    SYMBOL = auto()


class Token(NamedTuple):
    """A token and its place. `word` is the text of a word or symbol, in upper case, and empty for everything else."""

    kind: TokenKind
    text: str
    start: int
    end: int
    word: str = ""


_KINDS = {kind.name: kind for kind in TokenKind}


def tokens_of(sql: str) -> list[Token] | None:
    """The tokens of a statement, or None if a string, name or comment has no end."""
    tokens: list[Token] = []
    position = 0
    while 0 <= position < len(sql):
        position = _add_tokens(tokens, sql, position)
    return None if position < 0 else tokens


def _add_tokens(tokens: list[Token], sql: str, position: int) -> int:
    """Adds tokens up to the end of the next comment or dollar-quoted string. Returns -1 if the text can't be read."""
    for match in _TOKEN.finditer(sql, position):
        group = match.lastgroup or ""
        if group == "BLANK":
            continue
        if group == "COMMENT":
            return end_of_comment(sql, match.start(), len(sql))
        if group == "DOLLAR":
            end = sql.find(match[0], match.end()) + len(match[0])
            tokens.append(Token(TokenKind.STRING, sql[match.start() : end], match.start(), end))
            return end if end > match.end() else -1
        if group == "UNENDED":
            return -1
        text, (start, end) = match[0], match.span()
        token = Token(_KINDS[group], text, start, end, text.upper() if group in ("WORD", "SYMBOL") else "")
        if group == "STRING" and _continues_an_escaped_string(tokens):
            return -1
        tokens.append(token)
    return len(sql)


def _continues_an_escaped_string(tokens: list[Token]) -> bool:
    # After a line break, a string goes on, and the escapes of its first part are those of the next one.
    return bool(tokens) and tokens[-1].kind is TokenKind.ESCAPED
