"""What Alembic runs for each command: it lends our connection to the revisions, as one transaction.

Owns nothing but that; `migrate` in this package opens the connection and reports errors.
"""

from alembic import context
from sqlalchemy import create_engine, text
from sqlalchemy.pool import StaticPool

# Any number would do, as long as every release uses the same one: two migrations at once take turns.
_LOCK = 7_040_320_155_210_118_711


def _run() -> None:
    lent = context.config.attributes["connection"]
    engine = create_engine("postgresql+psycopg://", creator=lambda: lent, poolclass=StaticPool)
    with engine.connect() as connection:
        context.configure(connection=connection, transactional_ddl=True)
        with context.begin_transaction():
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            context.run_migrations()


_run()
