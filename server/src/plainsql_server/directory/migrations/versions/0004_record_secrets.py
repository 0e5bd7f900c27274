"""Add the secret that protects each database's idempotency records."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Two random UUIDs: 244 bits that nobody can guess, different for each row.
    op.execute(
        "ALTER TABLE databases ADD COLUMN record_secret text NOT NULL"
        " DEFAULT encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'hex')"
    )
