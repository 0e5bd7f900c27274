"""Classifies a statement by its text: its command, the session state it may leave behind, whether it may store code.

    classification = classify(sql)

Results are cached, because applications send the same statements again and again.
"""

from dataclasses import dataclass
from functools import lru_cache

from plainsql_server.core.sql_text import refuse_what_has_no_place
from plainsql_server.engine.connection.session_state import SessionState, may_store_code, state_left_by

# The cache takes a few megabytes at most.
_MAX_REMEMBERED = 2_000
_MAX_REMEMBERED_LENGTH = 2_000


@dataclass(frozen=True, slots=True)
class Classification:
    """What the text of a statement shows before it runs."""

    command: str
    state_without_code: SessionState
    session_state: SessionState
    may_store_code: bool

    def state_left(self, without_code: bool) -> SessionState:
        """The session state that the statement may leave behind; `without_code` if the database has no code."""
        return self.state_without_code if without_code else self.session_state


def classify(sql: str) -> Classification:
    """Classifies a statement. Raises RequestError if it isn't allowed in a request, such as BEGIN or LISTEN."""
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
