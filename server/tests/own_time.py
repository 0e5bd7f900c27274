"""Time as it would have passed on a machine whose host leaves it all of its processors.

    with own_time() as took:
        …
    assert took.seconds < 4

A virtual machine sees in /proc/stat how much of the processors' time its host has given to others.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STEAL = 7


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


def _processor_times() -> list[int]:
    """What all processors did since the start of the machine. Guests are counted among the users, too."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    return [int(number) for number in line.split()[1:9]]
