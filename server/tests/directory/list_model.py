"""The directory's list of processes as a model, for tests without a directory.

`test_processes.py` shows that the directory does the same.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed
from plainsql_server.directory.processes import REMEMBERED_S

Used = Mapping[str, tuple[int, int]]


@dataclass
class Row:
    """A process: its share and what it granted, when it was seen, and when it left."""

    share: int = 0
    used: Used = field(default_factory=dict)
    seen_s: float = 0.0
    left_s: float | None = None


class ListModel:
    """The rows by name of the process."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def renew(
        self, name: str, held: int, used: Used, now_s: float, dead: Collection[str] = ()
    ) -> tuple[Renewed, dict[str, int]]:
        """What `renew_process` of migration 0018 does."""
        for other, row in list(self.rows.items()):
            if row.left_s is None and other != name and (other in dead or row.seen_s <= now_s - UNSEEN_S):
                row.left_s, row.share = now_s, 0
            if row.left_s is not None and row.left_s <= now_s - REMEMBERED_S:
                del self.rows[other]
        own = self.rows.get(name, Row(left_s=now_s))
        is_listed = own.left_s is None and own.seen_s > now_s - UNSEEN_S
        others = [row for other, row in self.rows.items() if other != name and row.left_s is None]
        target = WHOLE // (len(others) + 1)
        kept = min(held, own.share) if is_listed else 0
        share = min(WHOLE - sum(row.share for row in others), max(target, kept))
        self.rows[name] = Row(share, used, now_s)
        return Renewed(share, target, len(others) + 1), self._others_used(name)

    def leave(self, name: str, used: Used, now_s: float) -> None:
        """What `leave_process` does."""
        row = self.rows.get(name)
        if row is not None and row.left_s is None:
            row.left_s, row.share, row.used = now_s, 0, used

    def _others_used(self, name: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        for other, row in self.rows.items():
            if other != name:
                found.update({org: counts[row.left_s is None] for org, counts in row.used.items()})
        return {org: number for org, number in found.items() if number > 0}
