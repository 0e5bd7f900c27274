"""Record of which database another one is a branch, and when a branch expires."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_COLUMNS = """
    ALTER TABLE databases
        ADD COLUMN branch_of text REFERENCES databases (id) ON DELETE SET NULL,
        ADD COLUMN expires_at timestamptz
"""
# A purge looks for the branches of what it deletes. Few databases expire.
_INDEXES = """
    CREATE INDEX databases_branch_of ON databases (branch_of);
    CREATE INDEX databases_expires_at ON databases (expires_at)
        WHERE state IN ('ready', 'suspended', 'failed');
"""


def upgrade() -> None:
    op.execute(_COLUMNS)
    op.execute(_INDEXES)
