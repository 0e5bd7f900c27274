"""The share of every divided limit that this process holds: a part of WHOLE, which changes as processes join and leave.

    share = Share()                          # holds nothing
    more = share.accept(renewed, asked_s)    # the directory's answer to a renewal
    share.part_of(180)                       # 90 of two processes, and 0 when the share has lapsed

    share = Share.fixed(Fraction(1, 2))      # one that does not change

`directory/processes.py` divides WHOLE among the processes of a plane. The limiter and the pools ask what they may use.
This module has the rules for one process: it never holds more than its row in the directory says, and nothing when the
row may have expired.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

# The parts are equal for up to 20 processes: it is the least common multiple of 1 to 20.
WHOLE = 232_792_560
# The directory takes back what was not renewed for UNSEEN_S, by its clock. A process gives it up earlier, by its own.
# Two renewals may fail until then.
LAPSE_S = 12.0
UNSEEN_S = 15.0


@dataclass(frozen=True, slots=True)
class Renewed:
    """A committed renewal: the share in the process' row, the one that it should have, and how many processes share."""

    share: int
    target: int
    processes: int


class Share:
    """What this process may use now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held = 0
        self._until_s = -math.inf
        self.processes = 1
        """How many processes divide the limits, this one included."""

    @classmethod
    def fixed(cls, part: Fraction) -> Self:
        """A share that does not change: that of one of 1 / `part` processes."""
        share = cls()
        share._held, share.processes, share._until_s = int(WHOLE * part), round(1 / part), math.inf
        return share

    @property
    def is_current(self) -> bool:
        """Whether the row in the directory can't have expired. What it says, others don't have."""
        return self._clock() < self._until_s

    @property
    def held(self) -> int:
        """The parts of WHOLE that this process may use now."""
        return self._held if self.is_current else 0

    def part_of(self, limit: int) -> int:
        """This process' part of a limit, rounded down."""
        return limit * self.held // WHOLE

    def lapse(self) -> None:
        """Gives everything up."""
        self._until_s = -math.inf

    def accept(self, renewed: Renewed, asked_s: float) -> bool:
        """Takes the share of a renewal that was requested at `asked_s`. Returns whether the row has more than that.

        If it has, this process does not use the rest from now on, and the next renewal may write a smaller share.
        """
        self._held = min(renewed.share, renewed.target)
        self._until_s = asked_s + LAPSE_S
        self.processes = renewed.processes
        return renewed.share > renewed.target
