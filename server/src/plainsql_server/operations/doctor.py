"""Runs all checks of `plainsql-server doctor`, one after the other.

    async for finding in examine(Target(read_settings())):
        ...

A check that fails does not stop the others. Nothing is changed.
"""

from collections.abc import AsyncIterator

from plainsql_server.core.observation import describe_for_operators
from plainsql_server.operations.check_cells import cells
from plainsql_server.operations.check_certificates import certificates
from plainsql_server.operations.check_directory import directory
from plainsql_server.operations.check_edge import alias, planes, processes, redis
from plainsql_server.operations.check_machine import files, limits, ports, programs
from plainsql_server.operations.findings import Check, Finding, Target, broken
from plainsql_server.operations.rights.check_rights import rights
from plainsql_server.operations.rights.check_secrets import sealed_secrets
from plainsql_server.operations.upkeep.check_backups import backups

CHECKS: tuple[Check, ...] = (
    files, certificates, limits, programs, directory, rights, sealed_secrets, cells, backups, redis, processes, ports,
    planes, alias,
)  # fmt: skip


async def examine(target: Target) -> AsyncIterator[Finding]:
    """Yield the findings of every check as they come."""
    for check in CHECKS:
        try:
            async for finding in check(target):
                yield finding
        except Exception as error:
            # A check that crashes is a finding too, and must not hide the other findings.
            yield broken(check.__name__, f"This check failed: {describe_for_operators(error)}", "Report this as a bug.")
