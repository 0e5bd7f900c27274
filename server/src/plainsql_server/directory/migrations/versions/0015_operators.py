"""Add suspended organizations, purges and the names of operators."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# Every node follows a suspension as it follows a tier.
_ORGANIZATIONS = """
    ALTER TABLE organizations ADD COLUMN suspended_at timestamptz;
    DROP TRIGGER tell_of_change ON organizations;
    CREATE TRIGGER tell_of_change
        AFTER UPDATE OF tier, suspended_at OR DELETE ON organizations
        FOR EACH ROW EXECUTE FUNCTION tell_of_change('id');
"""

# The audit log outlives an organization that is purged. An operator has a name; those before did not.
_AUDIT = """
    ALTER TABLE audit
        DROP CONSTRAINT audit_organization_id_fkey,
        DROP CONSTRAINT audit_check,
        ADD CONSTRAINT audit_actor_check CHECK (CASE actor_kind
            WHEN 'service' THEN actor_id IS NULL WHEN 'operator' THEN true ELSE actor_id IS NOT NULL END);
"""


def upgrade() -> None:
    op.execute(_ORGANIZATIONS)
    op.execute(_AUDIT)
