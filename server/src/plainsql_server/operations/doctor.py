"""`doctor`: every check, one after the other, none keeping the next from being made.

Owns the list of checks. Refuses to change anything.
"""

from collections.abc import AsyncIterator

from plainsql_server.core.observation import told_to_operators
from plainsql_server.operations.check_cells import cells
from plainsql_server.operations.check_certificates import certificates
from plainsql_server.operations.check_directory import directory
from plainsql_server.operations.check_edge import alias, planes, redis
from plainsql_server.operations.check_machine import files, limits, ports, programs
from plainsql_server.operations.findings import Check, Finding, Target, broken

CHECKS: tuple[Check, ...] = (
    files, certificates, limits, programs, directory, cells, redis, ports, planes, alias,
)  # fmt: skip


async def examine(target: Target) -> AsyncIterator[Finding]:
    """What each check finds, as soon as it finds it."""
    for check in CHECKS:
        try:
            async for finding in check(target):
                yield finding
        except Exception as error:
            # A check that fails is a finding, too, and must not hide what the others find.
            yield broken(check.__name__, f"This could not be checked: {told_to_operators(error)}", "Report this.")
