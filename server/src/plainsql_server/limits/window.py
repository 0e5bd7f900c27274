"""A sliding window: how many permits were given in the time that counts, to the hundredth of the window.

Owns the arithmetic that nodes and Redis share, and the ledger that a process keeps for itself. Permits are
counted in slots. A permit may be used until its life ends, and counts for a whole window after that, so that
no window of time, wherever it begins, ever sees more uses than the limit.
"""

from dataclasses import dataclass

# One slot is 600 ms of a minute. More slots would give permits back sooner, and make each count dearer.
_SLOTS = 100


@dataclass(frozen=True, slots=True)
class Window:
    """The time that a limit is for."""

    length_ms: int

    @property
    def slot_ms(self) -> int:
        return max(1, self.length_ms // _SLOTS)

    @property
    def life_s(self) -> float:
        """How long a permit may be kept before it is used: one slot."""
        return self.slot_ms / 1000

    @property
    def counted_slots(self) -> int:
        """For how many slots a permit counts: a window, one slot for its life, one for the rest of its own slot."""
        return -(-self.length_ms // self.slot_ms) + 2


class Ledger:
    """What one process gave to one organization, by its own clock."""

    __slots__ = ("_slots", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._slots: dict[int, int] = {}

    def add(self, permits: int, now_s: float) -> None:
        slot = self._slot(now_s)
        self._slots[slot] = self._slots.get(slot, 0) + permits

    def used(self, now_s: float) -> int:
        """How many permits count now."""
        oldest = self._slot(now_s) - self._window.counted_slots
        if any(slot <= oldest for slot in self._slots):
            self._slots = {slot: count for slot, count in self._slots.items() if slot > oldest}
        return sum(self._slots.values())

    def next_back_s(self, now_s: float) -> float:
        """How long until the oldest permit stops to count; a whole window if none does."""
        if not self._slots:
            return self._window.length_ms / 1000
        end_ms = (min(self._slots) + self._window.counted_slots) * self._window.slot_ms
        return max(0.0, end_ms / 1000 - now_s)

    def _slot(self, now_s: float) -> int:
        return int(now_s * 1000) // self._window.slot_ms
