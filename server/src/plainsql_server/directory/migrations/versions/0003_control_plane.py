"""Add sessions, usage, the audit log, unfinished work, and notifications of changes."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# A session belongs to its key and cannot be bound to another organization's database.
_SESSIONS = """
    CREATE TABLE sessions (
        id text PRIMARY KEY CHECK (id LIKE 'ses\\_%'),
        organization_id text NOT NULL REFERENCES organizations (id),
        key_id text NOT NULL REFERENCES api_keys (id),
        digest bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
        scopes text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'write', 'admin']),
        database_id text,
        created_at timestamptz NOT NULL,
        expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
        ended_at timestamptz,
        FOREIGN KEY (organization_id, database_id) REFERENCES databases (organization_id, id)
    );
    CREATE INDEX sessions_of_key ON sessions (key_id);
    CREATE INDEX sessions_of_database ON sessions (database_id);
    CREATE INDEX sessions_by_end ON sessions (expires_at);
"""

# A key is replaced once: two rotations at the same time cannot both succeed.
_KEYS = """
    ALTER TABLE api_keys
        ADD COLUMN last_used_at timestamptz,
        ADD COLUMN replaces text UNIQUE REFERENCES api_keys (id);
"""

# `work_after` is when unfinished work may be taken up by whoever looks next; `restores_to` is the state that a database
# had before it was deleted, and is gone from the moment that there is no way back.
_DATABASES = """
    ALTER TABLE databases
        ADD COLUMN restorable_until timestamptz,
        ADD COLUMN restores_to text CHECK (restores_to IN ('ready', 'suspended')),
        ADD COLUMN work_after timestamptz,
        ADD CHECK (restores_to IS NULL OR (state = 'deleting' AND restorable_until IS NOT NULL));
    UPDATE databases SET work_after = now() WHERE state IN ('creating', 'deleting');
    CREATE INDEX databases_unfinished ON databases (work_after) WHERE state IN ('creating', 'deleting');
"""

_USAGE = """
    CREATE TABLE usage (
        organization_id text NOT NULL,
        day date NOT NULL,
        database_id text NOT NULL,
        requests bigint NOT NULL,
        rows bigint NOT NULL,
        engine_us bigint NOT NULL,
        bytes bigint NOT NULL,
        PRIMARY KEY (organization_id, day, database_id),
        FOREIGN KEY (organization_id, database_id) REFERENCES databases (organization_id, id)
    );
"""

# What an operator does to a cell belongs to no organization.
_AUDIT = """
    CREATE TABLE audit (
        id text PRIMARY KEY CHECK (id LIKE 'aud\\_%'),
        at timestamptz NOT NULL DEFAULT now(),
        organization_id text REFERENCES organizations (id),
        actor_kind text NOT NULL CHECK (actor_kind IN ('operator', 'key', 'session', 'service')),
        actor_id text CHECK ((actor_id IS NULL) = (actor_kind IN ('operator', 'service'))),
        action text NOT NULL,
        target_id text NOT NULL,
        details jsonb NOT NULL,
        request_id text
    );
    CREATE INDEX audit_of_organization ON audit (organization_id, id);
"""

# Triggers tell, and not the code: so a change by any hand reaches every node, with the commit that makes it true.
_CHANGES = """
    CREATE FUNCTION tell_of_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('plainsql_changes', coalesce(to_jsonb(OLD) ->> TG_ARGV[0], '*'));
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF digest, scopes, database_id, expires_at, revoked_at OR DELETE ON api_keys
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('organization_id');
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF digest, scopes, database_id, expires_at, ended_at ON sessions
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('organization_id');
    CREATE TRIGGER tell_of_deletion
        AFTER DELETE ON sessions
        FOR EACH ROW WHEN (OLD.ended_at IS NULL AND OLD.expires_at > now())
        EXECUTE FUNCTION tell_of_change('organization_id');
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF name, state, is_default, plain, engine_name, cell_id OR DELETE ON databases
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('organization_id');
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF tier OR DELETE ON organizations
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('id');
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF conninfo ON cells
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('every organization');
"""


def upgrade() -> None:
    for statements in (_SESSIONS, _KEYS, _DATABASES, _USAGE, _AUDIT, _CHANGES):
        op.execute(statements)
