"""The directory's schema and how it came to be: Alembic revisions of plain SQL, forward only.

Owns `migrate`. Refuses to go back: a mistake is undone by the next revision, because a downgrade that drops
a column drops what customers had in it.
"""

from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError

from plainsql_server.core.errors import EngineError, InternalError

_CONNECT_TIMEOUT_S = 5


def migrate(dsn: str) -> None:
    """Brings the directory's schema up to date. Does nothing if it is; blocks, and two at once take turns.

    Raises EngineError if the directory is away, InternalError if a revision fails, which then changed nothing.
    """
    try:
        connection = psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S)
    except psycopg.Error as error:
        raise EngineError(
            "directory_unavailable",
            "The directory cannot be reached.",
            retryable=True,
            retry_after_ms=1_000,
            internal_context=str(error).strip(),
        ) from error
    with connection:
        _upgrade(connection)


def _upgrade(connection: psycopg.Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except DBAPIError as error:
        raise InternalError(f"migration: {error.orig}") from error
