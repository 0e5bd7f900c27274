"""`plainsql-server key …`."""

from datetime import datetime

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import organization_option, with_directory
from plainsql_server.control_plane import keys, organizations
from plainsql_server.core.credential import Secret
from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord

_COLUMNS = [
    "id", "name", "scopes", "database_name", "shown_prefix", "last_four", "created_at", "expires_at", "revoked_at",
]  # fmt: skip


class _Timestamp(click.ParamType[datetime]):
    """An RFC 3339 timestamp with its zone, such as 2027-01-31T00:00:00Z."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a timestamp such as 2027-01-31T00:00:00Z.", param, ctx)


@click.group("key")
def key_command() -> None:
    """Manage API keys, which programs use to authenticate."""


@key_command.command("create")
@organization_option
@click.option("--name", required=True, help="Label that says what the key is for.")
@click.option(
    "--scope", "scopes", type=click.Choice([str(scope) for scope in Scope]), multiple=True, required=True,
    help="What the key may do: read, write (includes read) or admin; repeatable.",
)  # fmt: skip
@click.option(
    "--database", help="Limit the key to this database. Without it, the key may use all of the organization's."
)
@click.option("--expires-at", type=_Timestamp(), help="Expiry time, such as 2027-01-31T00:00:00Z.")
def _create(
    organization: str, name: str, scopes: tuple[str, ...], database: str | None, expires_at: datetime | None
) -> None:
    """Create a key. Its secret is printed once, to stdout; everything else goes to stderr."""

    async def create(directory: Directory) -> tuple[KeyRecord, Secret]:
        owner = await organizations.get(directory, organization)
        granted = [Scope(scope) for scope in scopes]
        return await keys.create(directory, owner.id, name, granted, database=database, expires_at=expires_at)

    record, secret = with_directory(create)
    remark(f"Created {record.id}. This is its secret; it is not stored and cannot be shown again:")
    click.echo(secret.text)


@key_command.command("list")
@organization_option
@json_option
def _list(organization: str, as_json: bool) -> None:
    """List an organization's keys, oldest first, including revoked keys."""

    async def list_keys(directory: Directory) -> list[KeyRecord]:
        owner = await organizations.get(directory, organization)
        return await keys.list_(directory, owner.id)

    print_records(with_directory(list_keys, reads="key.list"), _COLUMNS, as_json=as_json)


@key_command.command("revoke")
@click.argument("key_id", metavar="ID")
def _revoke(key_id: str) -> None:
    """Revoke the key ID (key_…). It stops working within a second. Revoking it twice is harmless."""
    revoked = with_directory(lambda directory: keys.revoke(directory, key_id))
    remark(f"Revoked {revoked.id} ({revoked.name!r}).")
