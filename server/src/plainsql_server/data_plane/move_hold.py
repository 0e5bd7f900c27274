"""What a request is told whose database cannot be reached for a reason that the directory knows.

Owns these errors. The database may be back in a moment, so that both say when to try again.
"""

from plainsql_server.core.errors import EngineError, ServiceError

_RETRY_AFTER_MS = 1_000
_HELD = "the database is held for a move"


def database_held() -> EngineError:
    """The database is about to be on another cell: it is worth to wait for it."""
    return EngineError(
        "engine_unavailable",
        "The database is being moved, and not available at the moment.",
        retryable=True,
        retry_after_ms=_RETRY_AFTER_MS,
        internal_context=_HELD,
    )


def is_held(error: ServiceError) -> bool:
    return error.internal_context == _HELD


def cell_is_down() -> EngineError:
    """The operator says that the cell is away, so that nobody need find out by waiting for it."""
    return EngineError(
        "engine_unavailable",
        "The database is not available at the moment.",
        retryable=True,
        retry_after_ms=_RETRY_AFTER_MS,
        internal_context="its cell is marked as down",
    )
