"""Add the cell states full and down, limits on what a cell accepts, and moves between cells."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Every node heeds a cell that is down, so that a change of its state is told. A thousand databases a cell is what the
# catalogs and the files of one PostgreSQL bear well; an operator who measured otherwise says so.
_CELLS = """
    ALTER TABLE cells
        DROP CONSTRAINT cells_state_check,
        ADD CONSTRAINT cells_state_check CHECK (state IN ('active', 'draining', 'full', 'down')),
        ADD COLUMN room integer NOT NULL DEFAULT 1000 CHECK (room >= 0),
        ADD COLUMN tiers text[] CHECK (cardinality(tiers) > 0);
    DROP TRIGGER tell_of_change ON cells;
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF conninfo, state ON cells
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('every organization');
"""

# Requests to a database wait until it is not held any more, or until they cannot.
_DATABASES = """
    ALTER TABLE databases ADD COLUMN held_until timestamptz;
    CREATE TRIGGER tell_of_hold
        AFTER UPDATE OF held_until ON databases
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('organization_id');
"""

# The copy is a database of its own until both change places; afterwards it is what the database left behind.
_MOVES = """
    CREATE TABLE moves (
        id text PRIMARY KEY CHECK (id LIKE 'mov\\_%'),
        database_id text NOT NULL REFERENCES databases (id),
        copy_id text NOT NULL UNIQUE REFERENCES databases (id),
        from_cell_id text NOT NULL REFERENCES cells (id),
        to_cell_id text NOT NULL REFERENCES cells (id) CHECK (to_cell_id <> from_cell_id),
        state text NOT NULL CHECK (state IN ('copying', 'stopping', 'undoing', 'undone', 'done')),
        started_at timestamptz NOT NULL DEFAULT now(),
        alive_until timestamptz NOT NULL,
        ended_at timestamptz
    );
    CREATE UNIQUE INDEX moves_one_at_a_time ON moves (database_id) WHERE state IN ('copying', 'stopping', 'undoing');
    CREATE INDEX moves_unfinished ON moves (alive_until) WHERE state IN ('copying', 'stopping', 'undoing');
"""


def upgrade() -> None:
    for statements in (_CELLS, _DATABASES, _MOVES):
        op.execute(statements)
