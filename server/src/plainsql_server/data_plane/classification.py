"""What a statement's text tells before it runs: its command, and what it may leave behind.

Owns the memory of that, because applications send the same texts again and again. Refuses what has no
place in a request.
"""

from dataclasses import dataclass
from functools import lru_cache

from plainsql_server.core.statement import refuse_what_has_no_place
from plainsql_server.engine.connection.session_state import SessionState, may_store_code, state_left_by

# Some megabytes at the most.
_MAX_REMEMBERED = 2_000
_MAX_REMEMBERED_LENGTH = 2_000


@dataclass(frozen=True, slots=True)
class Classification:
    """What is known of a statement by its text alone."""

    command: str
    state_without_code: SessionState
    session_state: SessionState
    may_store_code: bool


def classify(sql: str) -> Classification:
    """The classification on a statement. Raises RequestError where it has no place in a request."""
    return _remembered(sql) if len(sql) <= _MAX_REMEMBERED_LENGTH else _classify(sql)


def _classify(sql: str) -> Classification:
    words = refuse_what_has_no_place(sql)
    return Classification(
        words[0] if words else "",
        state_left_by(words, sql, without_code=True),
        state_left_by(words, sql, without_code=False),
        may_store_code(words, sql),
    )


_remembered = lru_cache(_MAX_REMEMBERED)(_classify)
