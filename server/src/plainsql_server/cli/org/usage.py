"""`plainsql-server usage`."""

import csv
import dataclasses
import sys
from datetime import UTC, date, datetime, timedelta

import click
import msgspec

from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.operator.usage_report import ReportedUsage, usage_of_all

_COLUMNS = [field.name for field in dataclasses.fields(ReportedUsage)]
_day = click.DateTime(["%Y-%m-%d"])


@click.command("usage")
@click.option("--org", "organization", metavar="NAME-OR-ID", help="Only this organization.")
@click.option(
    "--from", "first", type=_day, metavar="DAY", help="First day, such as 2026-11-01; the first of the month."
)
@click.option("--to", "last", type=_day, metavar="DAY", help="Last day; today by default.")
@click.option("--format", "format_", type=click.Choice(["csv", "json"]), default="csv", show_default=True)
def usage_command(organization: str | None, first: datetime | None, last: datetime | None, format_: str) -> None:
    """Show what organizations have used, for each day and database, as CSV or as JSON, one object per line.

    Days are in UTC. Nodes report what was used every few seconds.
    """
    to = last.date() if last else datetime.now(UTC).date()
    from_ = first.date() if first else to.replace(day=1)
    if not timedelta(0) <= to - from_:
        raise click.UsageError("--from must not be later than --to.")
    with_directory(
        lambda directory: _print(directory, from_, to, organization, as_json=format_ == "json"), reads="usage"
    )


async def _print(directory: Directory, first: date, last: date, organization: str | None, *, as_json: bool) -> None:
    owner = None if organization is None else (await organizations.get(directory, organization)).id
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not as_json:
        writer.writerow(_COLUMNS)
    async for batch in usage_of_all(directory, first, last, owner):
        for used in batch:
            if as_json:
                click.echo(msgspec.json.encode(used).decode())
            else:
                writer.writerow([getattr(used, column) for column in _COLUMNS])
