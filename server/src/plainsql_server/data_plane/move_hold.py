"""Errors for databases that the directory knows to be unavailable: held for a move or a copy, or on a cell that is down
or lost.

Both are temporary, so both errors say when to retry.
"""

from plainsql_server.core.errors import RETRY_AFTER_MS, EngineError


class DatabaseHeld(Exception):
    """The database is held for a move or a copy. `databases.py` waits for it, and reports `database_held`."""


def database_held() -> EngineError:
    """The error while a database is held for its move to another cell or for a copy. It is worth waiting for."""
    return EngineError(
        "engine_unavailable",
        "The database is being moved or copied and is temporarily unavailable.",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
        internal_context="the database is held for a move or a branch",
    )


def cell_is_down() -> EngineError:
    """The error for a database whose cell is marked as down or lost, so that requests fail without a timeout."""
    return EngineError(
        "engine_unavailable",
        "The database is temporarily unavailable.",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
        internal_context="its cell is marked as down or lost",
    )
