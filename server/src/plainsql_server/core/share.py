"""The share of every divided limit that this process holds: a part of WHOLE, which changes as processes join and leave.

    share = Share()                          # holds nothing
    more = share.accept(renewed, asked_s)    # the directory's answer to a renewal
    share.part_of(180)                       # 90 of two processes, and 0 when the share has lapsed
    share.granting_part_of(180)              # the same for a limit per minute, while nothing counts for all processes

    share = Share.fixed(Fraction(1, 2))      # one that does not change

`directory/sharing/processes.py` divides WHOLE among the processes of a plane. The limiter and the pools ask what they
may use. This module has the rules for one process: it never holds more than its row in the directory says, and nothing
when the row may have expired.
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
# Several renewals may fail until then.
LAPSE_S = 12.0
UNSEEN_S = 15.0
# What others granted by their shares counts for a window and two of its slots (`limits/window.py`).
_COUNTS_S = 61.2


@dataclass(frozen=True, slots=True)
class Renewed:
    """A committed renewal: the share in the process' row, the one that it should have, and how many processes share."""

    share: int
    target: int
    processes: int
    is_first: bool = False
    """Whether no other process of the plane had a share in the last minute."""


class Share:
    """What this process may use now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held = 0
        self._until_s = -math.inf
        # The part that may be used for limits per minute, and what will be: (when, parts), in order.
        self._granting = 0
        self._growing: list[tuple[float, int]] = []
        self.processes = 1
        """How many processes divide the limits, this one included."""

    @classmethod
    def fixed(cls, part: Fraction) -> Self:
        """A share that does not change: that of one of 1 / `part` processes."""
        share = cls()
        share._held = share._granting = int(WHOLE * part)
        share.processes, share._until_s = round(1 / part), math.inf
        return share

    @property
    def is_current(self) -> bool:
        """Whether the row in the directory can't have expired. What it says, others don't have."""
        return self._clock() < self._until_s

    @property
    def left_s(self) -> float:
        """How long it will be current, if it is not renewed."""
        return self._until_s - self._clock()

    @property
    def held(self) -> int:
        """The parts of WHOLE that this process may use now."""
        return self._held if self.is_current else 0

    def part_of(self, limit: int) -> int:
        """This process' part of a limit, rounded down."""
        return limit * self.held // WHOLE

    def begin_granting(self) -> None:
        """Call it when shares grant permits from now on. What was granted before was counted for all processes.

        What a share gains later may be used for limits per minute only when nothing counts that others granted by it.
        """
        self._granting, self._growing = self.held, []

    def granting_part_of(self, limit: int) -> int:
        """This process' part of a limit per minute, rounded down."""
        if not self.is_current:
            return 0
        self._grow()
        return limit * self._granting // WHOLE

    def lapse(self) -> None:
        """Gives everything up."""
        self._until_s = -math.inf

    def accept(self, renewed: Renewed, asked_s: float) -> bool:
        """Takes the share of a renewal that was requested at `asked_s`. Returns whether the row has more than that.

        If it has, this process does not use the rest from now on, and the next renewal may write a smaller share.
        """
        if not self.is_current:
            self._hold(0)
        self._hold(min(renewed.share, renewed.target))
        if renewed.is_first:
            self._granting, self._growing = self._held, []
        self._until_s = asked_s + LAPSE_S
        self.processes = renewed.processes
        return renewed.share > renewed.target

    def _grow(self) -> None:
        while self._growing and self._growing[0][0] <= self._clock():
            self._granting = self._growing.pop(0)[1]

    def _hold(self, parts: int) -> None:
        self._grow()
        if parts > self._held:
            self._growing.append((self._clock() + _COUNTS_S, parts))
        self._held, self._granting = parts, min(self._granting, parts)
        self._growing = [(at_s, min(each, parts)) for at_s, each in self._growing]
