"""Create the first tables: tiers, organizations, cells, databases, roles and API keys."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Limits are code (`limits/tiers.py`); the directory only keeps an organization from naming a tier that is none.
_TIERS = """
    CREATE TABLE tiers (
        name text PRIMARY KEY
    );
    INSERT INTO tiers (name) VALUES ('free'), ('standard'), ('dedicated');
"""

# A name that looks like an id would be ambiguous on the operator's command line.
_ORGANIZATIONS = """
    CREATE TABLE organizations (
        id text PRIMARY KEY CHECK (id LIKE 'org\\_%'),
        name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 100 AND name NOT LIKE 'org\\_%'),
        tier text NOT NULL REFERENCES tiers (name),
        created_at timestamptz NOT NULL DEFAULT now()
    );
"""

_CELLS = """
    CREATE TABLE cells (
        id text PRIMARY KEY CHECK (id LIKE 'cell\\_%'),
        name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 63 AND name NOT LIKE 'cell\\_%'),
        conninfo text NOT NULL,
        admin_role text NOT NULL CHECK (admin_role <> ''),
        state text NOT NULL CHECK (state IN ('active', 'draining')),
        created_at timestamptz NOT NULL DEFAULT now()
    );
"""

# A deleted database gives up its name and its place as the default, but keeps its row for the record.
_DATABASES = """
    CREATE TABLE databases (
        id text PRIMARY KEY CHECK (id LIKE 'db\\_%'),
        organization_id text NOT NULL REFERENCES organizations (id),
        name text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
        state text NOT NULL CHECK (state IN ('creating', 'ready', 'suspended', 'deleting', 'deleted', 'failed')),
        is_default boolean NOT NULL DEFAULT false CHECK (NOT (is_default AND state = 'deleted')),
        engine_name text NOT NULL UNIQUE CHECK (engine_name ~ '^d_[0-9a-f]+$'),
        cell_id text NOT NULL REFERENCES cells (id),
        created_at timestamptz NOT NULL DEFAULT now(),
        UNIQUE (organization_id, id)
    );
    CREATE UNIQUE INDEX databases_one_name ON databases (organization_id, name) WHERE state <> 'deleted';
    CREATE UNIQUE INDEX databases_one_default ON databases (organization_id) WHERE is_default;
    CREATE INDEX databases_of_cell ON databases (cell_id);
"""

_ROLES = """
    CREATE TABLE roles (
        database_id text NOT NULL REFERENCES databases (id),
        kind text NOT NULL CHECK (kind IN ('owner', 'reader')),
        engine_name text NOT NULL UNIQUE CHECK (engine_name ~ '^[or]_[0-9a-f]+$'),
        PRIMARY KEY (database_id, kind)
    );
"""

# The foreign key over two columns keeps a key from being bound to another organization's database.
_API_KEYS = """
    CREATE TABLE api_keys (
        id text PRIMARY KEY CHECK (id LIKE 'key\\_%'),
        organization_id text NOT NULL REFERENCES organizations (id),
        name text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
        digest bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
        shown_prefix text NOT NULL CHECK (length(shown_prefix) <= 10),
        last_four text NOT NULL CHECK (length(last_four) = 4),
        scopes text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'write', 'admin']),
        database_id text,
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz,
        revoked_at timestamptz,
        FOREIGN KEY (organization_id, database_id) REFERENCES databases (organization_id, id)
    );
    CREATE INDEX api_keys_of_organization ON api_keys (organization_id);
    CREATE INDEX api_keys_of_database ON api_keys (database_id);
"""


def upgrade() -> None:
    """Creates the tables in the order of their references."""
    for statements in (_TIERS, _ORGANIZATIONS, _CELLS, _DATABASES, _ROLES, _API_KEYS):
        op.execute(statements)
