"""How far a long piece of work is, told to whoever shows it.

Owns the words between the two, and reading how far pg_dump is from what it says. Refuses to print.
"""

import re
from collections.abc import Mapping
from typing import Protocol

_TABLE = re.compile(r'pg_dump: dumping contents of table "(.*)"\Z')


class Progress(Protocol):
    """Shows the steps of a piece of work, one after the other."""

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:
        """A new step begins; the one before is done. Without a total, nobody knows how long it takes."""

    def at(self, done: int) -> None:
        """So much of the step's total is done."""


class TablesDumped:
    """How far a dump is, in bytes of the tables' sizes on disk: those behind it, and its guess for the one it is at.

    What pg_dump writes of a table is about as long as the table is on disk, which serves for the guess alone.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self.total = max(1, sum(sizes.values()))
        self._behind = 0
        self._at_size = 0
        self._at_written = 0

    def hear(self, line: str) -> None:
        """Takes a line that pg_dump remarked."""
        match = _TABLE.match(line)
        if match:
            self._behind += self._at_size
            self._at_size, self._at_written = self._sizes.get(match[1], 0), 0

    def wrote(self, size_bytes: int) -> int:
        """How far it is, now that it wrote so much more."""
        self._at_written += size_bytes
        return min(self.total, self._behind + min(self._at_size, self._at_written))
