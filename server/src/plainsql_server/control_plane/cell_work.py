"""Limits how many admin connections this process uses on a cell at once, and caches database sizes.

A process has one directory; `work_of(directory)` returns its `CellWork`.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin.branching import busy

# Customers need a cell's connections more than its administration does, which takes only milliseconds at a time.
CONNECTIONS = 8
# Branches that are made at once on a cell. Each takes seconds and flushes what all tenants of the cell have written.
BRANCHES = 2
# How old a cached size may be.
SIZES_FOR_S = 5.0


class CellWork:
    """A process's slots on each cell, and the sizes that it has read recently."""

    def __init__(self) -> None:
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CONNECTIONS))
        self._branching: Counter[str] = Counter()
        self._sizes: dict[str, tuple[int, float]] = {}

    def slot(self, cell_id: str) -> asyncio.Semaphore:
        """The semaphore for admin connections to a cell. Never wait for a second slot while holding one."""
        return self._slots[cell_id]

    @contextmanager
    def branching(self, cell_id: str) -> Iterator[None]:
        """For making a branch on a cell, which takes no slot. Raises EngineError if there are too many already."""
        if self._branching[cell_id] >= BRANCHES:
            raise busy("The server that holds the database has other branches to make.")
        self._branching[cell_id] += 1
        try:
            yield
        finally:
            self._branching[cell_id] -= 1

    def remember_sizes(self, sizes: dict[str, int]) -> None:
        """Caches these sizes, by database id, for a few seconds."""
        now_s = time.monotonic()
        self._sizes = {id_: known for id_, known in self._sizes.items() if known[1] > now_s}
        self._sizes |= {id_: (size, now_s + SIZES_FOR_S) for id_, size in sizes.items()}

    def remembered_size(self, database_id: str) -> int | None:
        size, until_s = self._sizes.get(database_id, (None, 0.0))
        return size if until_s > time.monotonic() else None

    def forget_size(self, database_id: str) -> None:
        self._sizes.pop(database_id, None)


_works: "WeakKeyDictionary[Directory, CellWork]" = WeakKeyDictionary()


def work_of(directory: Directory) -> CellWork:
    """The `CellWork` of a directory."""
    return _works.setdefault(directory, CellWork())
