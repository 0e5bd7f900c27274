"""Store the number of databases in each cell's row."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Counted in the transaction that changes a database, by whomever: so it can neither drift nor be forgotten. Of a row
# that there is not, before or after, every column is null, and no cell is that.
_COUNT = """
    LOCK TABLE databases IN SHARE ROW EXCLUSIVE MODE;
    ALTER TABLE cells ADD COLUMN databases integer NOT NULL DEFAULT 0 CHECK (databases >= 0);
    UPDATE cells SET databases = n
    FROM (SELECT cell_id, count(*) AS n FROM databases WHERE state <> 'deleted' GROUP BY cell_id) counted
    WHERE cells.id = counted.cell_id;
    CREATE FUNCTION count_databases() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE cells SET databases = databases - 1 WHERE id = OLD.cell_id AND OLD.state <> 'deleted';
            UPDATE cells SET databases = databases + 1 WHERE id = NEW.cell_id AND NEW.state <> 'deleted';
            RETURN NULL;
        END
    $$;
    CREATE TRIGGER count_databases
        AFTER INSERT OR DELETE ON databases FOR EACH ROW EXECUTE FUNCTION count_databases();
    CREATE TRIGGER count_moved_databases
        AFTER UPDATE OF cell_id, state ON databases FOR EACH ROW
        WHEN (OLD.cell_id <> NEW.cell_id OR (OLD.state = 'deleted') <> (NEW.state = 'deleted'))
        EXECUTE FUNCTION count_databases();
"""


def upgrade() -> None:
    op.execute(_COUNT)
