"""How long a cached lookup in the directory may be used without looking it up again.

Three times apply:

- short: a lookup is always valid for this time.
- long: while change notifications work, a lookup is valid for this time, because a change would have been announced.
  A proof that they work is itself valid for the short time only. So every node applies a change within the short time,
  whether its notifications work or have failed silently.
- grace: while the directory is unavailable, lookups that were valid when it was last heard from stay usable for this
  time. After that, requests fail.
"""

import math
import time
from collections.abc import Callable

# Called with the organization whose records changed, or None for all of them.
Forget = Callable[[str | None], None]


class Freshness:
    """The freshness that all caches of a process share."""

    def __init__(self, short_ms: int, long_ms: int, grace_ms: int) -> None:
        self.short_s = short_ms / 1000
        self._long_s = long_ms / 1000
        self._grace_s = grace_ms / 1000
        # Every change that was committed between `_heard_since_s` and `_proven_s` has been announced to us.
        self._proven_s = -math.inf
        # When we started to listen.
        self._heard_since_s = math.inf
        # Whether the last attempt to reach the directory failed.
        self.unavailable = False
        # How many changes were announced. A lookup that was running during a change may have read the old state.
        self.changes = 0
        self._forget: list[Forget] = []

    def holds(self, at_s: float) -> bool:
        """Whether a lookup that was made at this time of the monotonic clock is still valid."""
        now_s = time.monotonic()
        if now_s - at_s <= self.short_s:
            return True
        return now_s - self._proven_s <= self.short_s and at_s >= self._heard_since_s and now_s - at_s <= self._long_s

    def valid_until_s(self, at_s: float) -> float:
        """Until when a lookup that was made at this time is valid, if no change is announced and no proof comes."""
        until_s = at_s + self.short_s
        if at_s >= self._heard_since_s:
            until_s = max(until_s, min(self._proven_s + self.short_s, at_s + self._long_s))
        return until_s

    def allows_stale(self, at_s: float) -> bool:
        """Whether a lookup may be used past its validity, because the directory is unavailable."""
        if not self.unavailable:
            return False
        known_good_s = max(at_s, self._proven_s) if at_s >= self._heard_since_s else at_s
        return time.monotonic() - known_good_s <= self._grace_s

    def on_change(self, forget: Forget) -> None:
        """Registers a cache's function that forgets the lookups of an organization."""
        self._forget.append(forget)

    def announce(self, organization_id: str | None) -> None:
        """Makes every cache forget the lookups of an organization, or of all for None."""
        self.changes += 1
        for forget in self._forget:
            forget(organization_id)

    def listening(self) -> None:
        """Records that changes are announced from this moment. Earlier lookups are not covered."""
        self._heard_since_s = time.monotonic()

    def proven(self, at_s: float) -> None:
        """Records that every change committed by then has been announced."""
        self._proven_s = at_s
