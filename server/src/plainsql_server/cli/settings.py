"""`plainsql-server settings`."""

import click
import msgspec

from plainsql_server.cli.output import json_option, print_table
from plainsql_server.settings import describe_settings


@click.command("settings")
@json_option
def settings_command(as_json: bool) -> None:
    """List every setting: its environment variable, default and meaning. Current values are not shown."""
    columns = ["variable", "default", "description"]
    rows = describe_settings()
    if as_json:
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        click.echo(msgspec.json.format(msgspec.json.encode(records), indent=2))
        return
    print_table(columns, rows)
