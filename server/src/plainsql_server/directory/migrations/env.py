"""Alembic's environment: runs the revisions and grants the roles' rights on our connection, in one transaction.

`migrate` in this package opens the connection and reports errors.
"""

import json

from alembic import context
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import StaticPool

from plainsql_server.core.actor import OPERATOR, id_of
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory.rights.applying import statements

# An arbitrary number that every release must share: it makes concurrent migrations wait for each other.
_LOCK = 7_040_320_155_210_118_711

# A migration that waits for a lock on a table makes every later request for it wait, too. Planes wait 2 s for the
# directory. `migrate` tries again.
_LOCK_TIMEOUT_MS = 500


def _run() -> None:
    lent = context.config.attributes["connection"]
    engine = create_engine("postgresql+psycopg://", creator=lambda: lent, poolclass=StaticPool)
    with engine.connect() as connection:
        context.configure(connection=connection, transactional_ddl=True)
        with context.begin_transaction():
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
            before = context.get_context().get_current_revision()
            context.run_migrations()
            for statement in statements():
                connection.exec_driver_sql(statement)
            _note(connection, before, context.get_context().get_current_revision())


def _note(connection: Connection, before: str | None, after: str | None) -> None:
    """Writes an entry to the audit log, except for the migration that has created the log."""
    if before in (None, after):
        return
    statement = """
        INSERT INTO audit (id, at, actor_kind, actor_id, action, target_id, details)
        VALUES (:id, now(), :kind, :actor, 'directory.migrate', 'directory', CAST(:details AS jsonb))
    """
    values = {
        "id": new_id(Kind.AUDIT), "kind": OPERATOR.kind, "actor": id_of(OPERATOR),
        "details": json.dumps({"from": before, "to": after}),
    }  # fmt: skip
    connection.execute(text(statement), values)


_run()
