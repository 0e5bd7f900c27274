"""The permits of one organization in one process: its leases, its waiting requests, and what to report to the ledger.

A lease is a number of permits that are already debited in the ledger and can be used until they expire. This module
only counts; `permits.py` talks to the ledger.
"""

import asyncio
from collections import deque

from plainsql_server.limits.ledger import Ask
from plainsql_server.limits.window import Ledger, Window

# A process leases at most 1/10 of the limit in advance, so that few permits are idle in a process that doesn't use
# them. It leases nothing if that is fewer than 25 permits, as in the free tier.
_LEASED_SHARE = 10
_SMALLEST_LEASE = 25


class Permit:
    """The answer to a request for a permit: whether it is granted, how many are left, and when more become available.

    A plain class, because every request creates one.
    """

    __slots__ = ("granted", "left", "wait_s")

    def __init__(self, granted: bool, left: int, wait_s: float) -> None:
        self.granted = granted
        self.left = left
        self.wait_s = wait_s


class PermitAccount:
    """The permits of one organization. All times are from the process's monotonic clock."""

    __slots__ = (
        "asked_s", "expires_s", "held", "is_asking", "ledger", "left", "limit", "more_at_s", "name",
        "needed", "next_lease", "refill_at", "refused_until_s", "returned", "slot", "untold", "used", "waiting",
        "window",
    )  # fmt: skip

    def __init__(self, name: str, limit: int, window: Window) -> None:
        self.name = name
        self.limit = limit
        self.window = window
        # The current lease: its permits, when they expire, and the slot in which they were debited.
        self.held = 0
        self.expires_s = 0.0
        self.slot = 0
        # The lease that was fetched in advance: (permits, expires_s, slot).
        self.next_lease: tuple[int, float, int] | None = None
        # When this few permits are left, the next lease is requested.
        self.refill_at = -1
        # How many permits were left in the ledger at the last answer, and when more become available there.
        self.left = 0
        self.more_at_s = 0.0
        self.refused_until_s = 0.0
        self.waiting: deque[asyncio.Future[Permit]] = deque()
        self.is_asking = False
        self.needed = 0
        # Permits used since the last request to the ledger, and when that was.
        self.used = 0
        self.asked_s = 0.0
        # What this process granted in the last window, from any source, and how much of it the ledger doesn't know yet.
        self.ledger = Ledger(window)
        self.untold = 0
        self.returned: list[tuple[int, int]] = []

    def take_held(self, now_s: float) -> bool:
        """Takes a permit from a lease that has not expired. Returns whether there was one. See `lane/permit.pyx`."""
        if self.held and now_s < self.expires_s:
            self.held -= 1
            self.used += 1
            return True
        ahead, self.next_lease = self.next_lease, None
        if ahead is None:
            return False
        self.drop_expired(now_s)
        self.held, self.expires_s, self.slot = ahead
        # That lease may have expired, too.
        return self.take_held(now_s)

    def grant(self, left: int, now_s: float) -> Permit:
        """A granted permit, with `left` more remaining."""
        return Permit(True, left, max(0.0, self.more_at_s - now_s))

    def refusal(self, now_s: float) -> Permit:
        return Permit(False, 0, max(0.0, self.more_at_s - now_s))

    def drop_expired(self, now_s: float) -> None:
        """Sets expired, unused permits aside, to be returned to the ledger."""
        if self.held and now_s >= self.expires_s:
            self.returned.append((self.slot, self.held))
            self.held = 0
        if self.next_lease is not None and now_s >= self.next_lease[1]:
            count, _, slot = self.next_lease
            self.returned.append((slot, count))
            self.next_lease = None

    def drop_all(self) -> None:
        """Sets all unused permits aside, and wants no more."""
        self.expires_s, self.used = 0.0, 0
        if self.next_lease is not None:
            count, _, slot = self.next_lease
            self.next_lease = (count, 0.0, slot)
        self.drop_expired(0.0)

    def lease(self, permits: int, expires_s: float, slot: int) -> None:
        """Adds a lease. There is never a second one in advance, because only one is requested at a time."""
        if self.held:
            self.next_lease = (permits, expires_s, slot)
        else:
            self.held, self.expires_s, self.slot = permits, expires_s, slot
        self.refill_at = permits // 2

    def wants_refill(self) -> bool:
        return self.held <= self.refill_at and self.next_lease is None and not self.is_asking

    def is_idle(self, now_s: float) -> bool:
        """Whether the account can be removed: nothing is held or pending, and nothing granted still counts."""
        busy = self.held or self.next_lease or self.waiting or self.is_asking or self.untold or self.returned
        return not busy and now_s >= self.refused_until_s and not self.ledger.used(now_s)

    def ask(self, now_s: float) -> Ask:
        """The next request to the ledger. Everything pending counts as reported once this returns."""
        self.drop_expired(now_s)
        self.needed = sum(not place.done() for place in self.waiting)
        # Permits older than a window no longer count.
        given = min(self.untold, self.ledger.used(now_s))
        returned = tuple(self.returned)
        ask = Ask(self.name, self.limit, self.needed, self._wanted(now_s), given, returned)
        self.untold, self.used, self.asked_s = 0, 0, now_s
        self.returned.clear()
        return ask

    def _wanted(self, now_s: float) -> int:
        """The lease to request, for busy organizations: twice the recent use, up to the maximum for one process."""
        largest = self.limit // _LEASED_SHARE
        if largest < _SMALLEST_LEASE or self.next_lease is not None or self.held > max(0, self.refill_at):
            return 0
        if now_s - self.asked_s > 2 * self.window.life_s:
            return 0
        return min(largest, 2 * (self.used + self.needed))
