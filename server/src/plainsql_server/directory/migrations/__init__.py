"""The migrations of the directory's schema: Alembic revisions in plain SQL.

There are no downgrades, because one that drops a column would drop customers' data. A mistake is fixed by another
revision.
"""

from itertools import takewhile
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from plainsql_server.core.errors import RETRY_AFTER_MS, ConflictError, EngineError, InternalError, without_detail
from plainsql_server.directory.rights.grants import Role

_CONNECT_TIMEOUT_S = 5


def migrate(dsn: str) -> None:
    """Brings the directory's schema and its roles' rights up to date. Blocks. Concurrent calls wait for each other.

    Raises EngineError if the directory is unavailable, ConflictError if roles are missing and the login may not create
    them, InternalError if a revision fails; nothing has changed then.
    """
    with _connect(dsn) as connection:
        _upgrade(connection)


def _connect(dsn: str) -> psycopg.Connection:
    try:
        return psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S)
    except psycopg.Error as error:
        raise EngineError(
            "directory_unavailable",
            "Can't connect to the directory.",
            retryable=True,
            retry_after_ms=RETRY_AFTER_MS,
            internal_context=without_detail(str(error)),
        ) from error


def _upgrade(connection: psycopg.Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except DBAPIError as error:
        if "permission denied to create role" in str(error.orig):
            raise _without_roles() from error
        raise InternalError(f"migration: {error.orig}") from error


def _without_roles() -> ConflictError:
    return ConflictError(
        "roles_missing",
        "The directory's roles don't exist, and this login may not create them.",
        hint="Run as a superuser: "
        + " ".join(f"CREATE ROLE {role} LOGIN;" for role in Role)
        + " Then run `plainsql-server migrate` again.",
    )


def pending(dsn: str) -> list[tuple[str, str]] | None:
    """The revisions that `migrate` would run, in order, with their descriptions; None if the directory is newer.

    Blocks. Raises EngineError if the directory is unavailable.
    """
    script = ScriptDirectory(str(Path(__file__).parent))
    with _connect(dsn) as connection, _borrowed(connection).connect() as borrowed:
        current = MigrationContext.configure(borrowed).get_current_revision()
    known = list(script.walk_revisions())
    if current is not None and current not in {each.revision for each in known}:
        return None
    missing = takewhile(lambda each: each.revision != current, known)
    return [(each.revision, (each.doc or "").strip()) for each in missing][::-1]


def _borrowed(connection: psycopg.Connection) -> Engine:
    return create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool)
