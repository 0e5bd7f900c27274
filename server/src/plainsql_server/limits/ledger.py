"""What a node asks of the shared ledger and what it gets. Apart from `shared.py`, which loads the client of Redis."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from plainsql_server.limits.window import Window


class SharedLedgerLost(Exception):
    """The ledger is unavailable, too slow, or returned an error."""


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
    """Permits that the node granted from its share while it could not reach the ledger."""
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


class PermitLedger(Protocol):
    """A connection to the shared ledger. Methods raise SharedLedgerLost, TimeoutError or errors of the connection."""

    @property
    def run_id(self) -> str:
        """It changes when the ledger may have lost its data."""

    async def begin_warming(self) -> None:
        """Makes every node use its share until the ledger has seen a whole window."""

    async def settle(self, asks: Sequence[Ask]) -> list[Granted]:
        """The answers. Without requests, it only checks that the ledger responds."""


class LedgerKind(StrEnum):
    """Where the ledger is. The value is the label in the metrics."""

    REDIS = "redis"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class LedgerSource:
    """How to open the shared ledger."""

    kind: LedgerKind
    open: Callable[[Window], AbstractAsyncContextManager[PermitLedger]]
    """Raises SharedLedgerLost if it can't be opened, or if it fails inside the block."""
