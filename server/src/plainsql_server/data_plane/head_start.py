"""A request that is under way: what the fast lane hands over when it cannot finish one itself.

    head_start = HeadStart(lease, principal, place, began_s, SentStatement(prepared, sent_us))
    job.go_on(head_start, began_s)

The ordinary path enters in the middle: with this lease in the place of one of its own, and without sending the
statement or the transaction again if it was sent. The lane calls `abandon` at the end, which does nothing if the lease
was entered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.databases import Place
from plainsql_server.engine.connection.prepared import Prepared
from plainsql_server.engine.pool.pool import Lease


@dataclass(frozen=True, slots=True)
class SentStatement:
    """A statement that was sent: by its prepared name if it has parameters, and when."""

    prepared: Prepared | None
    sent_us: int


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """A transaction that was sent in one flush: when, and when those of its steps ended that the lane has read."""

    sent_us: int
    ended_us: Sequence[int]


class HeadStart:
    """A request that has at least its slot."""

    __slots__ = ("_is_taken", "_lease", "began_s", "place", "principal", "sent")

    def __init__(
        self,
        lease: Lease,
        principal: Principal,
        place: Place,
        began_s: float,
        sent: SentStatement | SentTransaction | None,
    ) -> None:
        self._lease = lease
        self._is_taken = False
        self.principal = principal
        self.place = place
        # When the request began, by the monotonic clock.
        self.began_s = began_s
        # None if it has a slot, but no connection.
        self.sent = sent

    def sent_us(self) -> int:
        """When its statements were sent; now, if they were not."""
        return monotonic_us() if self.sent is None else self.sent.sent_us

    def take(self) -> Lease:
        """The lease, to be entered."""
        self._is_taken = True
        return self._lease

    def abandon(self) -> None:
        """Ends the lease if the request ended before it was entered."""
        if not self._is_taken:
            self._is_taken = True
            self._lease.end()
