"""What a node asks of the shared ledger and what it gets. Apart from `shared.py`, which loads the client of Redis."""

from dataclasses import dataclass


class SharedLedgerLost(Exception):
    """Redis is unavailable, too slow, or returned an error."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of one node for one organization."""

    organization_id: str
    limit: int
    needed: int
    """Permits for waiting requests."""
    wanted: int
    """Permits to lease in addition. Fewer are granted if few are left."""
    given: int
    """Permits that the node granted from its share while it could not reach Redis."""
    returned: tuple[tuple[int, int], ...]
    """Leased permits that were not used: (slot, count)."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to an Ask."""

    granted: int
    left: int
    slot: int
    back_ms: int
    warming_ms: int
