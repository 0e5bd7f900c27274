"""Add the record of scheduled backups."""

from alembic import op

revision = "0013"
down_revision = "0009"
branch_labels = None
depends_on = None

# One row for each database, and one, without a database, for the directory itself.
_BACKUPS = """
    CREATE TABLE backups (
        target text PRIMARY KEY,
        database_id text REFERENCES databases ON DELETE CASCADE,
        succeeded_at timestamptz,
        size_bytes bigint,
        failed_at timestamptz,
        CHECK (target = coalesce(database_id, 'directory'))
    );
"""


def upgrade() -> None:
    op.execute(_BACKUPS)
