"""Allow a cell to be dedicated to one organization."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE cells ADD COLUMN organization_id text REFERENCES organizations (id)")
    op.execute("CREATE INDEX cells_of_organization ON cells (organization_id)")
