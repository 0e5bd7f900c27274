"""Add the records of transactions that span databases."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TABLE = """
    CREATE TABLE spanning_transactions (
        id text PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        organization_id text NOT NULL REFERENCES organizations (id),
        gid text NOT NULL UNIQUE,
        database_ids text[] NOT NULL,
        state text NOT NULL CHECK (state IN ('waiting', 'open', 'committed', 'aborted')),
        held_until timestamptz NOT NULL,
        freed_at timestamptz
    )
"""


def upgrade() -> None:
    op.execute(_TABLE)
    # The rule itself: of one organization, one at a time.
    op.execute("""
        CREATE UNIQUE INDEX spanning_one_at_a_time ON spanning_transactions (organization_id)
        WHERE state <> 'waiting' AND freed_at IS NULL
    """)
    op.execute("""
        CREATE INDEX spanning_in_line ON spanning_transactions (organization_id, number) WHERE freed_at IS NULL
    """)
    op.execute("CREATE INDEX spanning_held ON spanning_transactions (held_until) WHERE freed_at IS NULL")
    op.execute("CREATE INDEX spanning_freed ON spanning_transactions (freed_at) WHERE freed_at IS NOT NULL")
