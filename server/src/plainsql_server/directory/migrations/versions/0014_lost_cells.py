"""Add the cell states lost and removed."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# A removed cell keeps its row, because the rows of databases refer to it, but gives up its name. Since when a cell is
# lost decides when its databases may be restored elsewhere.
_CELLS = """
    ALTER TABLE cells
        DROP CONSTRAINT cells_state_check,
        ADD CONSTRAINT cells_state_check
            CHECK (state IN ('active', 'draining', 'full', 'down', 'lost', 'removed')),
        ADD COLUMN lost_since timestamptz,
        ADD CHECK (CASE state WHEN 'lost' THEN lost_since IS NOT NULL WHEN 'removed' THEN true
                   ELSE lost_since IS NULL END),
        DROP CONSTRAINT cells_name_key;
    CREATE UNIQUE INDEX cells_one_name ON cells (name) WHERE state <> 'removed';
"""


def upgrade() -> None:
    op.execute(_CELLS)
