"""Gives each database the secret that its record of requests asks the service for."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # 32 random bytes where one is missing; what is provisioned again gets the same secret on its cell.
    op.execute(
        "ALTER TABLE databases ADD COLUMN record_secret text NOT NULL"
        " DEFAULT encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'hex')"
    )
    op.execute("ALTER TABLE databases ALTER COLUMN record_secret DROP DEFAULT")
