"""Tells Alembic whether DDL is transactional on a connection: in autocommit mode, it isn't.

Alembic chooses its implementation by the name of the dialect. Ours is named `postgresql`, so Alembic takes DDL for
transactional. `register` replaces this implementation by one that asks the connection. On other dialects with this
name, it changes nothing. The dialect calls it if Alembic is loaded.
"""

from typing import Any

from alembic.ddl.impl import DefaultImpl
from sqlalchemy.dialects.postgresql.base import PGDialect

from plainsql.dialect import PlainSQLDialect


class AsksConnection:
    """The part of the implementation that is ours."""

    def __init__(
        self, dialect: Any, connection: Any, as_sql: bool, transactional_ddl: bool | None, *others: Any, **options: Any
    ) -> None:
        if transactional_ddl is None and not as_sql and _commits_at_once(dialect, connection):
            transactional_ddl = False
        super().__init__(dialect, connection, as_sql, transactional_ddl, *others, **options)  # type: ignore[call-arg]  # Alembic's


def register() -> None:
    """Puts our part in front of the implementation in use, unless it is there. Alembic's log shows the same name."""
    current: Any = DefaultImpl.get_by_dialect(PGDialect())  # type: ignore[no-untyped-call]
    if not issubclass(current, AsksConnection):
        # A class with a dialect's name registers itself.
        type(current)(current.__name__, (AsksConnection, current), {"__dialect__": PGDialect.name})


def _commits_at_once(dialect: Any, connection: Any) -> bool:
    return isinstance(dialect, PlainSQLDialect) and connection.get_isolation_level() == "AUTOCOMMIT"
