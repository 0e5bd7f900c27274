"""The interface for reporting progress, and a way to measure pg_dump's progress from its messages. Prints nothing."""

import re
from collections.abc import Mapping
from typing import Protocol

_TABLE = re.compile(r'pg_dump: dumping contents of table "(.*)"\Z')


class Progress(Protocol):
    """Receives the steps of a task, one after the other."""

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:
        """Start a new step; the previous one is done. Without a total, its length is unknown."""

    def at(self, done: int) -> None:
        """Report how much of the step's total is done."""


class TablesDumped:
    """Measures a dump's progress in bytes of table size on disk: finished tables, plus an estimate for the current one.

    The estimate assumes that pg_dump writes about as many bytes as the table takes on disk.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self.total = max(1, sum(sizes.values()))
        self._behind = 0
        self._at_size = 0
        self._at_written = 0

    def hear(self, line: str) -> None:
        """Process a line of pg_dump's stderr."""
        match = _TABLE.match(line)
        if match:
            self._behind += self._at_size
            self._at_size, self._at_written = self._sizes.get(match[1], 0), 0

    def wrote(self, size_bytes: int) -> int:
        """Count bytes that pg_dump wrote, and return the progress."""
        self._at_written += size_bytes
        return min(self.total, self._behind + min(self._at_size, self._at_written))
