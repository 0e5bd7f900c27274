"""The migrations of the directory's schema: Alembic revisions in plain SQL.

There are no downgrades, because one that drops a column would drop customers' data. A mistake is fixed by another
revision.
"""

from itertools import takewhile
from pathlib import Path
from time import monotonic, sleep

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import errors
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from plainsql_server.core.errors import RETRY_AFTER_MS, ConflictError, EngineError, InternalError, without_detail
from plainsql_server.directory.rights.grants import Role

_CONNECT_TIMEOUT_S = 5
_RETRY_FOR_S = 30.0
# Between two attempts, requests that had to wait are answered.
_PAUSE_S = 1.0


def migrate(dsn: str, retry_for_s: float = _RETRY_FOR_S) -> None:
    """Brings the directory's schema and its roles' rights up to date. Blocks. Concurrent calls wait for each other.

    A lock that others hold is awaited for a short time only, again and again for `retry_for_s`: requests queue behind
    the one who waits. Raises EngineError if the directory is unavailable or busy, ConflictError if the login lacks
    rights or roles are missing, InternalError if a revision fails; nothing has changed then.
    """
    give_up_at = monotonic() + retry_for_s
    with _connect(dsn) as connection:
        while True:
            try:
                return _upgrade(connection)
            except EngineError:
                if monotonic() > give_up_at:
                    raise
            connection.rollback()
            sleep(_PAUSE_S)


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
        if isinstance(error.orig, errors.InsufficientPrivilege):
            raise _without_rights(connection, str(error.orig)) from error
        if isinstance(error.orig, errors.LockNotAvailable | errors.DeadlockDetected):
            raise EngineError(
                "directory_busy",
                "Another transaction holds a lock on the directory's tables. Nothing was changed.",
                hint="Run it again. If that doesn't help, find the transaction in pg_stat_activity and end it.",
                retryable=True,
                retry_after_ms=RETRY_AFTER_MS,
            ) from error
        raise InternalError(f"migration: {error.orig}") from error


def _without_rights(connection: psycopg.Connection, why: str) -> ConflictError:
    connection.rollback()
    rows = connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", (list(Role),)).fetchall()
    missing = sorted(set(Role) - {str(name) for (name,) in rows})
    if not missing:
        return ConflictError(
            "not_the_owner",
            "This login may not change the directory.",
            hint="Run it as the owner of the directory's tables.",
            internal_context=without_detail(why),
        )
    return ConflictError(
        "roles_missing",
        "The directory's roles don't exist, and this login may not create them.",
        hint="Run as a superuser: "
        + " ".join(f"CREATE ROLE {role} LOGIN;" for role in missing)
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
