"""How many branches an organization may make in 24 hours.

    await check_daily_limit(connection, organization_id, DailyLimit("free", 20))

A copy is work for the whole cell: it writes as much as the parent has, and checkpoints flush what all tenants wrote. So
branches that were deleted count, and those that failed, but not those that failed before the cell had work with them
(`withdraw` in `branches.py`).
"""

import math
from dataclasses import dataclass

from plainsql_server.core.errors import LimitError
from plainsql_server.directory.connection import DirectoryConnection

# Records of deleted databases are kept as long as their organization.
_FULL_FOR_S = """
    SELECT extract(epoch FROM created_at + interval '24 h' - now())::float8 AS wait_s FROM databases
    WHERE organization_id = %s AND branch_of IS NOT NULL AND created_at > now() - interval '24 h'
    ORDER BY created_at DESC OFFSET %s LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class DailyLimit:
    """How many branches the organizations of a tier may make in 24 hours."""

    tier: str
    branches: int


async def check_daily_limit(connection: DirectoryConnection, organization_id: str, limit: DailyLimit) -> None:
    """Raises LimitError if the organization has made that many. The caller has locked it, so the count stays correct.

    The error says when the oldest of them no longer counts.
    """
    row = await (await connection.execute(_FULL_FOR_S, (organization_id, limit.branches - 1))).fetchone()
    if row is None:
        return
    wait_s = math.ceil(row["wait_s"])
    raise LimitError(
        "branch_limit",
        f"Branch limit reached: the {limit.tier} tier allows {limit.branches} new branches in 24 hours."
        f" Retry in {_shown(wait_s)}.",
        hint="Deleted branches count, too. Use a branch again instead of making a new one.",
        retryable=True,
        retry_after_ms=wait_s * 1000,
    )


def _shown(wait_s: int) -> str:
    if wait_s < 60:
        return f"{wait_s} s"
    hours, minutes = divmod(math.ceil(wait_s / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
