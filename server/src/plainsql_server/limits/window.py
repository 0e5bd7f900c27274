"""A sliding window that counts permits, accurate to one hundredth of the window.

It contains the arithmetic that nodes and Redis share, and the local ledger of a process. Permits are counted in slots.
A permit can be used until its life ends, and counts for a whole window after that. So no time window, wherever it
begins, contains more uses than the limit.
"""

from dataclasses import dataclass

# For a minute, one slot is 600 ms. More slots would release permits sooner, but make each count more expensive.
_SLOTS = 100


@dataclass(frozen=True, slots=True)
class Window:
    """The time window of a limit."""

    length_ms: int

    @property
    def slot_ms(self) -> int:
        return max(1, self.length_ms // _SLOTS)

    @property
    def life_s(self) -> float:
        """How long a permit may be held before it is used: one slot."""
        return self.slot_ms / 1000

    @property
    def counted_slots(self) -> int:
        """How many slots a permit counts for: a window, one slot for its life, and one for the rest of its own slot."""
        return -(-self.length_ms // self.slot_ms) + 2


class Ledger:
    """The permits that one process granted one organization, by its own clock."""

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
        """How long until the oldest permit stops counting; a whole window if there is none."""
        if not self._slots:
            return self._window.length_ms / 1000
        end_ms = (min(self._slots) + self._window.counted_slots) * self._window.slot_ms
        return max(0.0, end_ms / 1000 - now_s)

    def _slot(self, now_s: float) -> int:
        return int(now_s * 1000) // self._window.slot_ms
