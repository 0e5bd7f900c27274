"""How much memory this machine has, or this container, if it is allowed less.

    machine_memory_bytes()

Needs no third-party library, because `dev` loads it first.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Where each version of control groups is mounted, and the file that has a group's limit. A group without a limit says
# "max", or in version 1 a number larger than any machine's memory.
_GROUPS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory or the limit of this process's control group, whichever is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups that this process belongs to, and of the groups around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        # Not Linux.
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        version = next((name for name in _GROUPS if name in controllers.split(",")), None)
        if version is not None:
            yield from _limits_around(root, *_GROUPS[version], PurePosixPath(group.lstrip("/")))


def _limits_around(root: Path, mount: str, name: str, group: PurePosixPath) -> Iterator[int]:
    for each in (group, *group.parents):
        try:
            text = (root / mount / each / name).read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            # The topmost group has no limit. A container sees the names of groups outside it, but not their files.
            continue
        if text.isdigit():
            yield int(text)
