"""What a statement's text tells before it runs: its command, and what it may leave behind.

Owns the memory of that, because applications send the same texts again and again. Refuses what has no
place in a request.
"""

from dataclasses import dataclass
from functools import lru_cache

from plainsql_server.core.statement import refuse_what_has_no_place
from plainsql_server.engine.connection.session_state import Leftovers, leftovers_of, may_store_code

# Some megabytes at the most.
_MAX_REMEMBERED = 2_000
_MAX_REMEMBERED_LENGTH = 2_000


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of a statement by its text alone."""

    command: str
    leftovers_if_plain: Leftovers
    leftovers: Leftovers
    may_store_code: bool


def judge(sql: str) -> Judgement:
    """The judgement on a statement. Raises RequestError where it has no place in a request."""
    return _remembered(sql) if len(sql) <= _MAX_REMEMBERED_LENGTH else _judge(sql)


def _judge(sql: str) -> Judgement:
    words = refuse_what_has_no_place(sql)
    return Judgement(
        words[0] if words else "",
        leftovers_of(words, sql, plain_database=True),
        leftovers_of(words, sql, plain_database=False),
        may_store_code(words, sql),
    )


_remembered = lru_cache(_MAX_REMEMBERED)(_judge)
