"""One organization's permits in one process: the leases that it holds, who waits for more, what Redis must hear.

Owns these counts. A lease is a number of permits that are debited already and may be used until they expire.
Refuses to speak to anybody: `permits.py` does.
"""

import asyncio
from collections import deque

from plainsql_server.limits.shared import Ask
from plainsql_server.limits.window import Ledger, Window

# A process leases at most this part of the limit ahead, so that few permits lie idle where they were not used; and
# nothing where that part is hardly worth a lease, as in the tier free.
_LEASED_SHARE = 10
_SMALLEST_LEASE = 25


class Permit:
    """The answer to a request for permission: granted or not, what is left, and how long until more comes back.

    A plain class, since one is made for every request and mypyc makes these in no time.
    """

    __slots__ = ("granted", "left", "wait_s")

    def __init__(self, granted: bool, left: int, wait_s: float) -> None:
        self.granted = granted
        self.left = left
        self.wait_s = wait_s


class Account:
    """The permits of one organization. All times are the process' own monotonic clock's."""

    __slots__ = (
        "asked_s", "expires_s", "held", "is_asking", "ledger", "left", "limit", "more_at_s", "name",
        "needed", "next_lease", "refill_at", "refused_until_s", "returned", "slot", "untold", "used", "waiting",
        "window",
    )  # fmt: skip

    def __init__(self, name: str, limit: int, window: Window) -> None:
        self.name = name
        self.limit = limit
        self.window = window
        # The lease in use: permits, when they expire, and the slot that they were debited in.
        self.held = 0
        self.expires_s = 0.0
        self.slot = 0
        # The lease that was fetched ahead: (permits, expires_s, slot).
        self.next_lease: tuple[int, float, int] | None = None
        # The next lease is asked for when so few are held.
        self.refill_at = -1
        # Left in Redis when it was last heard of, and when the next permits come back there.
        self.left = 0
        self.more_at_s = 0.0
        self.refused_until_s = 0.0
        self.waiting: deque[asyncio.Future[Permit]] = deque()
        self.is_asking = False
        self.needed = 0
        # Permits used since the last question, and when that was.
        self.used = 0
        self.asked_s = 0.0
        # What this process gave in the last window, whoever granted it; and what of it Redis has not heard.
        self.ledger = Ledger(window)
        self.untold = 0
        self.returned: list[tuple[int, int]] = []

    def take_held(self, now_s: float) -> bool:
        """Takes a permit of a lease, if there is one that has not expired."""
        if self.held and now_s < self.expires_s:
            self.held -= 1
            self.used += 1
            return True
        ahead, self.next_lease = self.next_lease, None
        if ahead is None:
            return False
        self.drop_expired(now_s)
        self.held, self.expires_s, self.slot = ahead
        # One that expired as well, since nobody looked, is no lease either.
        return self.take_held(now_s)

    def grant(self, left: int, now_s: float) -> Permit:
        """A permit that says that `left` are left."""
        return Permit(True, left, max(0.0, self.more_at_s - now_s))

    def refusal(self, now_s: float) -> Permit:
        return Permit(False, 0, max(0.0, self.more_at_s - now_s))

    def drop_expired(self, now_s: float) -> None:
        """Sets aside what expired unused, to be told to Redis."""
        if self.held and now_s >= self.expires_s:
            self.returned.append((self.slot, self.held))
            self.held = 0
        if self.next_lease is not None and now_s >= self.next_lease[1]:
            count, _, slot = self.next_lease
            self.returned.append((slot, count))
            self.next_lease = None

    def lease(self, permits: int, expires_s: float, slot: int) -> None:
        """Adds a lease; there is none ahead already, because only one is asked for at a time."""
        if self.held:
            self.next_lease = (permits, expires_s, slot)
        else:
            self.held, self.expires_s, self.slot = permits, expires_s, slot
        self.refill_at = permits // 2

    def wants_refill(self) -> bool:
        return self.held <= self.refill_at and self.next_lease is None and not self.is_asking

    def is_idle(self, now_s: float) -> bool:
        """Whether it can be forgotten: nothing is held or due, and nothing that was given counts any more."""
        busy = self.held or self.next_lease or self.waiting or self.is_asking or self.untold or self.returned
        return not busy and now_s >= self.refused_until_s and not self.ledger.used(now_s)

    def ask(self, now_s: float) -> Ask:
        """What to ask Redis now. From here on everything that was due counts as told."""
        self.drop_expired(now_s)
        self.needed = sum(not place.done() for place in self.waiting)
        # What is older than a window is nobody's business any more.
        given = min(self.untold, self.ledger.used(now_s))
        returned = tuple(self.returned)
        ask = Ask(self.name, self.limit, self.needed, self._wanted(now_s), given, returned)
        self.untold, self.used, self.asked_s = 0, 0, now_s
        self.returned.clear()
        return ask

    def _wanted(self, now_s: float) -> int:
        """A lease for those who are busy: as much again as was used lately, within the share of a node."""
        largest = self.limit // _LEASED_SHARE
        if largest < _SMALLEST_LEASE or self.next_lease is not None or self.held > max(0, self.refill_at):
            return 0
        if now_s - self.asked_s > 2 * self.window.life_s:
            return 0
        return min(largest, 2 * (self.used + self.needed))
