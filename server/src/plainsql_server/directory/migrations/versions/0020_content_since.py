"""Since when a database has its content on its cell: a restore of an earlier moment would find it incomplete."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# The databases that there are get the time of the migration: what was on their cells before is not known.
_COLUMN = "ALTER TABLE databases ADD COLUMN content_since timestamptz NOT NULL DEFAULT now()"


def upgrade() -> None:
    op.execute(_COLUMN)
