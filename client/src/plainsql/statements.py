"""What a statement's first word says: whether it can be sent again without harm.

Owns that one classification. It need not be right about statements that look like reads: those are sent as read-only,
and PostgreSQL itself refuses there what writes. Refuses to parse SQL.
"""

import re

# White space, comments and opening parentheses before the first word. Nested comments are read as far as the first end,
# after which no word of the list follows: such a statement counts as a write, which is the safe side.
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([a-zA-Z]+)", re.DOTALL)
_READS = frozenset(["SELECT", "VALUES", "TABLE", "WITH", "SHOW", "EXPLAIN"])


def first_word(sql: str) -> str:
    """The first word in capitals, or an empty string."""
    match = _FIRST_WORD.match(sql)
    return match[1].upper() if match else ""


def looks_like_a_read(sql: str) -> bool:
    """Whether to try it as read-only first."""
    return first_word(sql) in _READS
