"""`plainsql-server doctor`."""

import asyncio
from pathlib import Path

import click
import msgspec

from plainsql_server.cli.output import json_option, remark
from plainsql_server.cli.status import ca_file_option
from plainsql_server.operations.doctor import examine
from plainsql_server.operations.findings import BACKUP_MAX_AGE_H, DISK_FREE_PERCENT, Finding, Grade, Target
from plainsql_server.settings import SettingsError, read_settings

_MARKS = {Grade.GOOD: "ok", Grade.WARNING: "!!", Grade.BROKEN: "XX"}
_COLOURS = {Grade.GOOD: "green", Grade.WARNING: "yellow", Grade.BROKEN: "red"}


@click.command("doctor")
@ca_file_option
@click.option("--disk-free-percent", type=click.FloatRange(0, 100), default=DISK_FREE_PERCENT, show_default=True,
              help="Warn if a cell's disk on this machine has less free space.")  # fmt: skip
@click.option("--backup-max-age-hours", "backup_max_age_h", type=click.FloatRange(min=0), default=BACKUP_MAX_AGE_H,
              show_default=True, help="Warn if a database's last backup is older.")  # fmt: skip
@json_option
@click.pass_context
def doctor_command(
    ctx: click.Context, ca_file: Path | None, disk_free_percent: float, backup_max_age_h: float, as_json: bool
) -> None:
    """Check every part of the service from this machine, and say how to fix what is wrong.

    Changes nothing. Exit code 0: nothing is broken, but there may be warnings (!!). Exit code 1: something is broken
    (XX).
    """
    try:
        settings = read_settings()
    except SettingsError as error:
        findings = [
            Finding("settings", Grade.BROKEN, str(error), "Correct it. `plainsql-server settings` lists every setting.")
        ]
        _show(findings[0], as_json)
    else:
        findings = asyncio.run(_examine(Target(settings, ca_file, disk_free_percent, backup_max_age_h), as_json))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(findings), indent=2))
    else:
        _sum_up(findings)
    ctx.exit(1 if any(finding.grade is Grade.BROKEN for finding in findings) else 0)


async def _examine(target: Target, quiet: bool) -> list[Finding]:
    findings = []
    async for finding in examine(target):
        findings.append(finding)
        _show(finding, quiet)
    return findings


def _show(finding: Finding, quiet: bool) -> None:
    if quiet:
        return
    mark = click.style(_MARKS[finding.grade], fg=_COLOURS[finding.grade])
    click.echo(f"{mark}  {finding.check:<14}  {finding.found}")
    if finding.fix:
        click.echo(f"{'':20}→ {finding.fix}")


def _sum_up(findings: list[Finding]) -> None:
    counts = {grade: sum(finding.grade is grade for finding in findings) for grade in Grade}
    remark(f"{counts[Grade.GOOD]} good, {counts[Grade.WARNING]} warnings, {counts[Grade.BROKEN]} broken.")
