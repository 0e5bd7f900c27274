"""`plainsql-server upgrade`."""

import asyncio

import click
import msgspec

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.operations.upgrade import carry_out, plan
from plainsql_server.settings import read_settings


@click.command("upgrade")
@click.option("--dry-run", is_flag=True, help="Only say what would be changed.")
@json_option
@click.pass_context
def upgrade_command(ctx: click.Context, dry_run: bool, as_json: bool) -> None:
    """Bring the directory's tables and every cell up to this version, as `migrate` and `cell add` do.

    Prints what it changes, and changes nothing if one of them cannot be brought up to date: then the exit code is 1.
    In customers' databases only rights are taken away that new ones do not have, either. It may be run again.
    """
    dsn = read_settings().directory_dsn
    changes = asyncio.run(plan(dsn))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(changes), indent=2))
    elif changes:
        print_records(changes, ["where", "what", "refused"], as_json=False)
    if any(change.refused for change in changes):
        remark("Nothing was changed: mend what is refused first.")
        ctx.exit(1)
    if not dry_run:
        asyncio.run(carry_out(dsn))
    remark("Nothing to change." if not changes else "Nothing was changed yet." if dry_run else "Done.")
