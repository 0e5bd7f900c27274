"""Doctor's check of scheduled backups: when every database was last backed up, and whether that fails."""

from collections.abc import AsyncIterator

from plainsql_server.core.errors import ServiceError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.upkeep.backup_record import BackupState, backup_state, late
from plainsql_server.operations.findings import Finding, Target, broken, good, warning

_SHOWN = 3
_HOUR_S = 3_600
_SCHEDULE = "Run `plainsql-server backups` with a timer: deploy/systemd has one."
_READ_LOG = "Run `plainsql-server backups` by hand, or read the log of its timer: it says why each of them fails."


async def backups(target: Target) -> AsyncIterator[Finding]:
    """Check that no last backup is too old."""
    if target.settings.upkeep == "off":
        return
    max_age_s = target.backup_max_age_h * _HOUR_S
    async with Directory.open(target.settings.directory_dsn, max_connections=1) as directory:
        try:
            state = await backup_state(directory)
            overdue = await late(directory, max_age_s, _SHOWN + 1)
        except ServiceError as error:
            yield broken("backups", "They can't be checked without the directory.", error.hint or "Fix the directory.")
            return
    for finding in _findings(state, overdue, max_age_s):
        yield finding


def _findings(state: BackupState, overdue: list[str], max_age_s: float) -> list[Finding]:
    findings = []
    if state.failing:
        findings.append(warning("backups", f"The last attempt failed for {state.failing} of them.", _READ_LOG))
    if overdue:
        shown = ", ".join(overdue[:_SHOWN]) + (" and others" if len(overdue) > _SHOWN else "")
        found = f"The last backup is older than {max_age_s / _HOUR_S:g} hours for {shown}."
        findings.append(warning("backups", found, _SCHEDULE))
    if state.directory_age_s is not None and state.directory_age_s > max_age_s:
        found = f"The last backup of the directory is older than {max_age_s / _HOUR_S:g} hours."
        findings.append(warning("backups", found, _SCHEDULE))
    if not findings:
        hours = (state.oldest_age_s or 0.0) / _HOUR_S
        found = f"All {state.databases} databases were backed up or created within the last {hours:.1f} hours."
        findings.append(good("backups", found))
    return findings
