"""Where one statement ends and the next begins.

Owns splitting at semicolons that stand in no string, name or comment, so that a file or a line may hold several.
Refuses to understand more of SQL than that.
"""

import re

# What may hold a semicolon that ends nothing: strings, names, dollar-quoted texts, comments. Unclosed ones reach the
# end.
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
    """The statements that a semicolon ends, without it, and what is left."""
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
    """PostgreSQL's comments nest."""
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)
