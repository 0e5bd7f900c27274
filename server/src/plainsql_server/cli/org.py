"""`plainsql-server org …`."""

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import organizations
from plainsql_server.limits.tiers import TIERS


@click.group("org")
def org_command() -> None:
    """Manage organizations. An organization owns databases and keys, and limits apply to it."""


@org_command.command("create")
@click.argument("name")
@click.option(
    "--tier", type=click.Choice(list(TIERS)), default="free", show_default=True, help="Tier, which sets the limits."
)
def _create(name: str, tier: str) -> None:
    """Create the organization NAME. Prints its ID."""
    created = with_directory(lambda directory: organizations.create(directory, name, tier))
    remark(f"Created the organization {created.name!r}, tier {created.tier}.")
    click.echo(created.id)


@org_command.command("list")
@json_option
def _list(as_json: bool) -> None:
    """List every organization, oldest first."""
    records = with_directory(organizations.list_)
    print_records(records, ["id", "name", "tier", "created_at"], as_json=as_json)
