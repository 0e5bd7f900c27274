"""Add restores to a point in time that customers ask for, and the workers that carry them out."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# The target is the database itself, or the branch that gets what it was. A running restore is taken up again by another
# worker after `alive_until`; `attempts` tells the workers apart.
_RESTORES = """
    CREATE TABLE restores (
        id text PRIMARY KEY,
        organization_id text NOT NULL REFERENCES organizations,
        database_id text NOT NULL REFERENCES databases,
        target_id text NOT NULL REFERENCES databases,
        cell_id text NOT NULL REFERENCES cells,
        point timestamptz NOT NULL,
        state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'failed')),
        actor_kind text NOT NULL,
        actor_id text,
        request_id text,
        attempts integer NOT NULL DEFAULT 0,
        alive_until timestamptz,
        step text,
        done_bytes bigint,
        total_bytes bigint,
        seconds_left integer,
        replaced_id text REFERENCES databases,
        missing_transactions integer,
        error_code text,
        error_message text,
        error_hint text,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        started_at timestamptz,
        ended_at timestamptz,
        CHECK ((state IN ('done', 'failed')) = (ended_at IS NOT NULL)),
        CHECK ((state = 'failed') = (error_code IS NOT NULL)),
        CHECK ((state = 'running') = (alive_until IS NOT NULL))
    )
"""
# A database has one restore at a time. The others serve lists, claims, and the purge of what they refer to.
_INDEXES = """
    CREATE UNIQUE INDEX restores_unfinished ON restores (database_id) WHERE state IN ('waiting', 'running');
    CREATE INDEX restores_of_cell ON restores (cell_id) WHERE state IN ('waiting', 'running');
    CREATE INDEX restores_of_organization ON restores (organization_id, id);
    CREATE INDEX restores_of_database ON restores (database_id);
    CREATE INDEX restores_to_target ON restores (target_id);
    CREATE INDEX restores_that_replaced ON restores (replaced_id);
"""
_WORKERS = """
    CREATE TABLE restore_workers (
        cell_id text PRIMARY KEY REFERENCES cells ON DELETE CASCADE,
        seen_at timestamptz NOT NULL,
        archive_since timestamptz
    )
"""


def upgrade() -> None:
    op.execute(_RESTORES)
    op.execute(_INDEXES)
    op.execute(_WORKERS)
