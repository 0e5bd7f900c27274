"""Add the list of data plane processes."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# A process that has no port of its own is listed without an address, because the number of processes matters, too.
_PROCESSES = """
    CREATE TABLE data_processes (
        id text PRIMARY KEY CHECK (id LIKE 'proc\\_%'),
        host text NOT NULL,
        pid integer NOT NULL,
        address text,
        started_at timestamptz NOT NULL DEFAULT now(),
        seen_at timestamptz NOT NULL DEFAULT now()
    );
"""


def upgrade() -> None:
    op.execute(_PROCESSES)
