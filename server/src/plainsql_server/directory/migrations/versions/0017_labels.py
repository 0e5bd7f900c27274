"""Let several organizations have the same name, and add indexes that a purge needs."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Without them, each deleted row of `databases` and `organizations` is searched for in all of the referencing table.
_INDEXES = """
    CREATE INDEX moves_of_database ON moves (database_id);
    CREATE INDEX backups_of_database ON backups (database_id);
    CREATE INDEX sessions_of_organization ON sessions (organization_id);
    CREATE INDEX organizations_by_name ON organizations (name);
"""

# A name is a label. If it were unique, a customer could find out which other customers there are.
_NAMES = "ALTER TABLE organizations DROP CONSTRAINT organizations_name_key"


def upgrade() -> None:
    op.execute(_INDEXES)
    # Last, because every request that looks up a key waits for this lock. While indexes are built, only writers wait.
    op.execute(_NAMES)
