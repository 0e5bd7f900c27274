"""Splits text into statements at semicolons outside of strings, quoted names and comments.

It understands no more of SQL than that.
"""

import re

# A semicolon inside one of these does not end a statement: strings, quoted names, dollar quotes, comments. An unclosed
# one extends to the end of the text.
_OPAQUE = re.compile(
    r"""
      [eE]'(?:[^'\\]|\\.|'')*(?:'|$)
    | '(?:[^']|'')*(?:'|$)
    | "(?:[^"]|"")*(?:"|$)
    | --[^\n]*
    | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?:(?P=tag)|$)
    | /\*
    | ;
    """,
    re.VERBOSE | re.DOTALL,
)


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon (without it), and the remaining text."""
    statements: list[str] = []
    start = at = 0
    while match := _OPAQUE.search(text, at):
        at = match.end()
        if match[0] == "/*":
            at = _comment_end(text, at)
        elif match[0] == ";":
            if text[start : match.start()].strip():
                statements.append(text[start : match.start()].strip())
            start = at
    return statements, text[start:].strip()


def _comment_end(text: str, at: int) -> int:
    """The end of a block comment; PostgreSQL allows nested ones."""
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)
