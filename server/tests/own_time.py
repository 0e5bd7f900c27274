"""Time as it would have passed on a machine whose host leaves it all of its processors.

    with own_time() as took:
        …
    assert took.seconds < 4

    wait_for_the_host()    # before a claim about time

A virtual machine sees in /proc/stat how much of the processors' time its host has given to others.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STEAL = 7
_PROBE_S = 0.02
# How long the host must leave us a processor after it has taken one, before we believe that it is over.
_LONG_PROBE_S = 0.5
# A probe uses a processor. If several runs did nothing but probe, each would wait for the others.
_PAUSE_S = 1.0
LEFT_AT_LEAST = 0.9
# For all tests of a run together: it may be so for hours.
_WAIT_LIMIT_S = 300.0


@dataclass
class Took:
    """What a block took."""

    seconds: float = 0.0


@contextmanager
def own_time() -> Iterator[Took]:
    """Measures the block, without the share of the time that the host has taken."""
    took, began_s, before = Took(), time.monotonic(), _processor_times()
    yield took
    passed = [after - earlier for earlier, after in zip(before, _processor_times(), strict=True)]
    stolen = passed[_STEAL] / max(1, sum(passed))
    took.seconds = (time.monotonic() - began_s) * (1 - stolen)


class HostWatch:
    """Waits for the host, for so many seconds in all."""

    def __init__(self, limit_s: float, share_left: Callable[[float], float], pause_s: float = _PAUSE_S) -> None:
        self._left_s = limit_s
        self._share_left = share_left
        self._pause_s = pause_s

    def wait(self) -> None:
        """Returns when the host leaves us a processor, or when all of the time is used up."""
        if self._share_left(_PROBE_S) >= LEFT_AT_LEAST:
            return
        began_s = time.monotonic()
        while time.monotonic() - began_s < self._left_s and self._share_left(_LONG_PROBE_S) < LEFT_AT_LEAST:
            time.sleep(self._pause_s)
        self._left_s -= time.monotonic() - began_s


def share_left(probe_s: float = _PROBE_S) -> float:
    """How much of a processor this thread gets if it does nothing but count for so long."""
    began_s, used_s = time.monotonic(), time.thread_time()
    while time.monotonic() - began_s < probe_s:
        pass
    return (time.thread_time() - used_s) / (time.monotonic() - began_s)


def _processor_times() -> list[int]:
    """What all processors did since the start of the machine. Guests are counted among the users, too."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    return [int(number) for number in line.split()[1:9]]


wait_for_the_host = HostWatch(_WAIT_LIMIT_S, share_left).wait
