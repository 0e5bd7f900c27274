"""What processes take: processor time and memory, of one and all that it started.

Owns reading them from /proc. A process that ends meanwhile has no memory, and its time is its parent's.
"""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """The processor time that a process and its children have had, in seconds; to the nanosecond while they live."""
    alive = [pid, *children(pid)]
    files = [file for each in alive for file in Path(f"/proc/{each}/task").glob("*/schedstat")]
    return sum(int(text.split()[0]) for text in map(_read, files) if text) / 1e9 + sum(map(_ended_s, alive))


def _ended_s(pid: int) -> float:
    """What the children of a process have had that ended."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / _TICKS_PER_S


def memory_mib(pid: int) -> float:
    """A process and its children: what they do not share with others, and their part of what they do."""
    rollups = [_read(Path(f"/proc/{each}/smaps_rollup")) for each in [pid, *children(pid)]]
    lines = [line for rollup in rollups for line in rollup.splitlines() if line.startswith("Pss:")]
    return sum(int(line.split()[1]) for line in lines) / 1024


def children(pid: int) -> list[int]:
    direct = [int(each) for each in _read(Path(f"/proc/{pid}/task/{pid}/children")).split()]
    return direct + [below for child in direct for below in children(child)]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
