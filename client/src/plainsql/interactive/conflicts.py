"""Conflicts between transactions: which errors they are, and how long to wait before the next attempt."""

import os

from plainsql.errors import Error

MAX_ATTEMPTS = 10
_FIRST_PAUSE_S = 0.01
_PAUSE_S_MAX = 1.0
# A serialization failure, and a deadlock.
_CONFLICTS = ("40001", "40P01")


def is_conflict(error: Error) -> bool:
    """Whether the transaction was rolled back because of another one, so that running it again can succeed."""
    return getattr(error, "sqlstate", None) in _CONFLICTS and error.outcome in (None, "rolled_back", "not_executed")


class Attempts:
    """The attempts to run a transaction. Call `pause_after` when one has failed."""

    def __init__(self, max_attempts: int) -> None:
        if max_attempts < 1:
            raise ValueError("max_attempts must be 1 or more.")
        self._left = max_attempts
        self._longest_s = _FIRST_PAUSE_S

    def pause_after(self, error: Error) -> float:
        """Returns the pause before the next attempt, in seconds. If there is none, raises the error again.

        The pauses are random, so that rivals don't meet again.
        """
        self._left -= 1
        if self._left == 0 or not is_conflict(error):
            raise error
        longest_s, self._longest_s = self._longest_s, min(self._longest_s * 2, _PAUSE_S_MAX)
        return longest_s * (0.5 + os.urandom(1)[0] / 512)
