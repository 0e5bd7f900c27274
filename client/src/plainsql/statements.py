"""Classifies a statement as a read or a write by its first word.

A wrong guess is harmless: statements that look like reads are sent read-only, and PostgreSQL then rejects any write.
"""

import re

# Skips whitespace, comments and opening parentheses. A nested comment is skipped only up to its first end; what follows
# is then not a word of the list, so the statement counts as a write, which is safe.
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([a-zA-Z]+)", re.DOTALL)
_READS = frozenset(["SELECT", "VALUES", "TABLE", "WITH", "SHOW", "EXPLAIN"])


def first_word(sql: str) -> str:
    """The first word in capitals, or an empty string."""
    match = _FIRST_WORD.match(sql)
    return match[1].upper() if match else ""


def looks_like_a_read(sql: str) -> bool:
    """Whether to send it read-only first."""
    return first_word(sql) in _READS
