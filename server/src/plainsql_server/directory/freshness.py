"""How long an answer of the directory may be believed without asking again.

Three times decide. An answer is believed for the short time whatever happens. While the channel of changes is
sound it is believed for the long one: word of a change would have come. Soundness is proven again and again,
and a proof counts for the short time only, so that a change is heeded by every node within the short time,
whether its channel works or has died without a word. While the directory itself is away, answers that were
true when it was last heard are borne with for the time of grace; after that requests fail.

Owns these times and the announcing of changes. Refuses to know what is remembered.
"""

import math
import time
from collections.abc import Callable

# Called with the organization whose records changed, or None for all of them.
Forget = Callable[[str | None], None]


class Freshness:
    """What the memories of one process have in common."""

    def __init__(self, short_ms: int, long_ms: int, grace_ms: int) -> None:
        self.short_s = short_ms / 1000
        self._long_s = long_ms / 1000
        self._grace_s = grace_ms / 1000
        # Every change that was committed before this moment has been announced to us,
        self._proven_s = -math.inf
        # if it was committed after this one.
        self._heard_since_s = math.inf
        # Whether the last attempt to reach the directory failed.
        self.away = False
        # How many changes were announced: a look-up that was under way meanwhile may have seen the state before.
        self.changes = 0
        self._forget: list[Forget] = []

    def holds(self, at_s: float) -> bool:
        """Whether an answer may be believed that was asked for at this moment of the monotonic clock."""
        now_s = time.monotonic()
        if now_s - at_s <= self.short_s:
            return True
        return now_s - self._proven_s <= self.short_s and at_s >= self._heard_since_s and now_s - at_s <= self._long_s

    def allows_stale(self, at_s: float) -> bool:
        """Whether an answer may be used although it cannot be asked for again: the directory is away."""
        if not self.away:
            return False
        known_good_s = max(at_s, self._proven_s) if at_s >= self._heard_since_s else at_s
        return time.monotonic() - known_good_s <= self._grace_s

    def on_change(self, forget: Forget) -> None:
        """Registers a memory, which is told whose answers to forget."""
        self._forget.append(forget)

    def announce(self, organization_id: str | None) -> None:
        """Has every memory forget what it knows of an organization, or of all for None."""
        self.changes += 1
        for forget in self._forget:
            forget(organization_id)

    def listening(self) -> None:
        """Notes that changes are announced from now on. What was looked up before cannot count on that."""
        self._heard_since_s = time.monotonic()

    def proven(self, at_s: float) -> None:
        """Notes that every change that was committed by then has been announced."""
        self._proven_s = at_s
