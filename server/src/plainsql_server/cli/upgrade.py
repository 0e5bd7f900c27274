"""`plainsql-server upgrade`."""

import asyncio

import click
import msgspec

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.core.actor import name_operator
from plainsql_server.operations.upgrade import carry_out, plan
from plainsql_server.settings import operators_name, read_settings


@click.command("upgrade")
@click.option("--dry-run", is_flag=True, help="Only list what would change.")
@json_option
@click.pass_context
def upgrade_command(ctx: click.Context, dry_run: bool, as_json: bool) -> None:
    """Upgrade the directory's tables and every cell to this version, as `migrate` and `cell add` do.

    Prints what it changes. If one of them can't be upgraded, nothing is changed and the exit code is 1. In customers'
    databases, it only revokes privileges that new databases don't have, and updates the functions in the schema
    `plainsql`. The directory can only be changed by the owner of its tables. You can run it again at any time.
    """
    settings = read_settings()
    name_operator(operators_name(settings))
    dsn = settings.directory_dsn
    changes = asyncio.run(plan(dsn))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(changes), indent=2))
    elif changes:
        print_records(changes, ["where", "what", "refused"], as_json=False)
    if any(change.refused for change in changes):
        remark("Nothing was changed. Fix the refused items first.")
        ctx.exit(1)
    if not dry_run:
        asyncio.run(carry_out(dsn, changes))
    remark("Nothing to change." if not changes else "Dry run: nothing was changed." if dry_run else "Done.")
