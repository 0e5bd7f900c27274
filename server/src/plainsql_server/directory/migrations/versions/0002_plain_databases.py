"""Record which databases contain no code, such as functions and triggers."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A database that is there already may hold anything.
    op.execute("ALTER TABLE databases ADD COLUMN plain boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE databases ALTER COLUMN plain SET DEFAULT true")
