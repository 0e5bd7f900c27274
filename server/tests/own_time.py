"""Time as it would have passed on a machine whose host leaves it all of its processors.

    with own_time() as took:
        …
    assert took.seconds < 4

    wait_for_the_host()    # before a claim about time

A virtual machine sees in /proc/stat how much of the processors' time its host has given to others.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STEAL = 7
_PROBE_S = 0.02
LEFT_AT_LEAST = 0.9
_WAIT_LIMIT_S = 60.0


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


def wait_for_the_host() -> None:
    """Waits until the host leaves us a processor for a moment; not for ever, since it may be so for hours."""
    end_s = time.monotonic() + _WAIT_LIMIT_S
    while share_left() < LEFT_AT_LEAST and time.monotonic() < end_s:
        time.sleep(0.5)


def share_left() -> float:
    """How much of a processor this thread gets if it does nothing but count."""
    began_s, used_s = time.monotonic(), time.thread_time()
    while time.monotonic() - began_s < _PROBE_S:
        pass
    return (time.thread_time() - used_s) / (time.monotonic() - began_s)


def _processor_times() -> list[int]:
    """What all processors did since the start of the machine. Guests are counted among the users, too."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    return [int(number) for number in line.split()[1:9]]
