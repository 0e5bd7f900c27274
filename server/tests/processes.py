"""Processes that tests started, with their children: looking at them, and ending them at once.

Owns the end of what cannot be asked to stop.
"""

import os
import signal
from pathlib import Path


def children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def kill_with_children(pid: int) -> None:
    """Ends a process and its children at once, as a power cut would."""
    # A parent that does not move starts nobody anew.
    os.kill(pid, signal.SIGSTOP)
    for each in [*children_of(pid), pid]:
        os.kill(each, signal.SIGKILL)
