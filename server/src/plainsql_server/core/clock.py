"""Clocks: wall-clock time for people and records, monotonic time for durations and deadlines.

The rest of the service reads the time of day only through this module.
"""

import math
import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> datetime:
    """The time of day, in UTC."""
    return datetime.now(UTC)


def time_of(wall_us: int) -> datetime:
    """The time of day, in UTC, this many microseconds after the beginning of 1970."""
    return _EPOCH + timedelta(microseconds=wall_us)


def wall_s() -> float:
    """The time of day in seconds since 1970, for comparisons on every request."""
    return time.time()


def monotonic_us() -> int:
    """Microseconds since an arbitrary fixed point. Only differences are meaningful."""
    return time.perf_counter_ns() // 1000


class Deadline:
    """A point in time after which a response is useless."""

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    @classmethod
    def after_ms(cls, timeout_ms: int) -> "Deadline":
        return cls(time.monotonic() + timeout_ms / 1000)

    def left_s(self) -> float:
        """Seconds left, never less than zero."""
        return max(0.0, self.at_s - time.monotonic())


NO_DEADLINE = Deadline(math.inf)
