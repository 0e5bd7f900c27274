"""How much this process does at once on a cell besides its customers' statements.

Owns the bound on connections of the admin role, and what is remembered of sizes so that asking for them is cheap.
Refuses to know what is done with a connection. A process has one directory, and all of this belongs to that.
"""

import asyncio
import time
from collections import defaultdict
from weakref import WeakKeyDictionary

from plainsql_server.directory.connection import Directory

# Customers need the cell's connections more than its administration does, which takes some milliseconds at a time.
CONNECTIONS = 8
# As long as a size may be behind.
SIZES_FOR_S = 5.0


class CellWork:
    """The turns of a process on each cell, and the sizes that it read lately."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CONNECTIONS))
        self._sizes: dict[str, tuple[int, float]] = {}

    def turn(self, cell_id: str) -> asyncio.Semaphore:
        """Held by whoever has a connection to the cell; never by one who waits for another turn."""
        return self._turns[cell_id]

    def remember_sizes(self, sizes: dict[str, int]) -> None:
        """Remembers these, by the databases' ids, for a moment."""
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
    """The work that goes with a directory."""
    return _works.setdefault(directory, CellWork())
