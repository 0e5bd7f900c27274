"""Add the record of rehearsals: when a restore from the archive of each cell was last tried, and how that ended."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_REHEARSALS = """
    CREATE TABLE rehearsals (
        cell_id text PRIMARY KEY REFERENCES cells ON DELETE CASCADE,
        succeeded_at timestamptz,
        failed_at timestamptz
    );
"""


def upgrade() -> None:
    op.execute(_REHEARSALS)
