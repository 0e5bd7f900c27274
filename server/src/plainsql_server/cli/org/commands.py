"""`plainsql-server org …`."""

from dataclasses import dataclass

import click

from plainsql_server.cli.output import confirm, json_option, print_one, print_records, remark, yes_option
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import databases, keys, organizations
from plainsql_server.control_plane.purging import Purged, purge_organization
from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.limits.tiers import TIERS
from plainsql_server.settings import read_settings

_organization_argument = click.argument("organization", metavar="NAME-OR-ID")
_tier = click.Choice(list(TIERS))


@dataclass(frozen=True, slots=True)
class _SignedUp:
    """What a new customer needs."""

    organization_id: str
    database_id: str | None
    database: str | None
    url: str | None
    key_id: str | None
    key: str | None


@click.group("org")
def org_command() -> None:
    """Manage organizations. An organization owns databases and keys, and limits apply to it."""


@org_command.command("create")
@click.argument("name")
@click.option("--tier", type=_tier, default="free", show_default=True, help="Tier, which sets the limits.")
@click.option("--database", metavar="NAME", help="Also create its first database.")
@click.option("--key", "key_name", metavar="NAME", help="Also create a key with the scopes write and admin.")
@json_option
def _create(name: str, tier: str, database: str | None, key_name: str | None, as_json: bool) -> None:
    """Create the organization NAME. Prints its ID.

    With --key, prints the URL of the service and the key's secret, too: what a new customer needs. The secret is not
    stored and cannot be shown again. If the database can't be created, the organization stays, and you can continue
    with `database create` and `key create`.
    """
    settings = read_settings()
    url = settings.alias_url or settings.data_url or None

    async def create(directory: Directory) -> _SignedUp:
        created = await organizations.create(directory, name, tier)
        remark(f"Created the organization {created.name!r}, tier {created.tier}.")
        first = None if database is None else await databases.create(directory, created.id, database)
        first_id = None if first is None else first.id
        if first is not None:
            remark(f"Created the database {first.name!r}, the default.")
        if key_name is None:
            return _SignedUp(created.id, first_id, database, None, None, None)
        key, secret = await keys.create(directory, created.id, key_name, [Scope.WRITE, Scope.ADMIN])
        remark(f"Created {key.id}. Its secret is not stored and cannot be shown again.")
        return _SignedUp(created.id, first_id, database, url, key.id, secret.text)

    made = with_directory(create)
    if as_json:
        print_one(made)
        return
    for line in (made.organization_id, made.url, made.key):
        if line is not None:
            click.echo(line)


@org_command.command("list")
@json_option
def _list(as_json: bool) -> None:
    """List every organization, oldest first."""
    records = with_directory(organizations.list_, reads="org.list")
    print_records(records, ["id", "name", "tier", "created_at", "suspended_at"], as_json=as_json)


@org_command.command("set-tier")
@_organization_argument
@click.argument("tier", type=_tier)
@json_option
def _set_tier(organization: str, tier: str, as_json: bool) -> None:
    """Set an organization's tier. Every node applies its limits within a second. Nothing is deleted."""

    async def set_tier(directory: Directory) -> OrganizationRecord:
        return await organizations.set_tier(directory, (await organizations.get(directory, organization)).id, tier)

    _show(with_directory(set_tier), f"is of the tier {tier}", as_json=as_json)


@org_command.command("suspend")
@_organization_argument
@json_option
def _suspend(organization: str, as_json: bool) -> None:
    """Suspend an organization. Within a second, every request with its keys and sessions is refused with 403.

    It keeps its databases, keys and sessions. Running requests finish; running streams end.
    """

    async def suspend(directory: Directory) -> OrganizationRecord:
        return await organizations.suspend(directory, (await organizations.get(directory, organization)).id)

    _show(with_directory(suspend), "is suspended", as_json=as_json)


@org_command.command("resume")
@_organization_argument
@json_option
def _resume(organization: str, as_json: bool) -> None:
    """End an organization's suspension. Databases that were suspended themselves stay suspended."""

    async def resume(directory: Directory) -> OrganizationRecord:
        return await organizations.resume(directory, (await organizations.get(directory, organization)).id)

    _show(with_directory(resume), "is not suspended", as_json=as_json)


@org_command.command("delete")
@_organization_argument
@click.option("--purge", is_flag=True, required=True, help="Delete permanently: databases, keys, sessions and usage.")
@yes_option
@json_option
def _delete(*, organization: str, purge: bool, yes: bool, as_json: bool) -> None:
    """Delete an organization permanently, with all its databases. Prints what is left of it.

    To keep everything, use `org suspend`. If a cell does not respond, the organization is closed, and you can run the
    command again.
    """
    if not purge:
        raise click.UsageError("An organization can only be deleted permanently: add --purge, or use `org suspend`.")
    confirm(f"Delete the organization {organization!r} and all its databases? This can't be undone.", yes=yes)
    applied_after_s = read_settings().principal_cache_ms / 1000

    async def delete(directory: Directory) -> Purged:
        found = await organizations.get(directory, organization)
        return await purge_organization(directory, found, applied_after_s)

    purged = with_directory(delete)
    remark(f"Deleted {purged.id} and {purged.databases_dropped} databases. Left of it:")
    if as_json:
        print_one(purged)
        return
    for line in purged.left:
        click.echo(line)


def _show(changed: OrganizationRecord, what: str, *, as_json: bool) -> None:
    remark(f"The organization {changed.name!r} {what}.")
    if as_json:
        print_one(changed)
