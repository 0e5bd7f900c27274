"""Alembic's environment: runs the revisions and grants the roles' rights on our connection, in one transaction.

`migrate` in this package opens the connection and reports errors.
"""

from alembic import context
from sqlalchemy import create_engine, text
from sqlalchemy.pool import StaticPool

from plainsql_server.directory.rights.applying import statements

# An arbitrary number that every release must share: it makes concurrent migrations wait for each other.
_LOCK = 7_040_320_155_210_118_711


def _run() -> None:
    lent = context.config.attributes["connection"]
    engine = create_engine("postgresql+psycopg://", creator=lambda: lent, poolclass=StaticPool)
    with engine.connect() as connection:
        context.configure(connection=connection, transactional_ddl=True)
        with context.begin_transaction():
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            context.run_migrations()
            for statement in statements():
                connection.exec_driver_sql(statement)


_run()
