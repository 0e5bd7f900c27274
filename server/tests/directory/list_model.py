"""The directory's list of processes as a model, for tests without a directory.

`test_processes.py` shows that the directory does the same.
"""

from collections.abc import Collection
from dataclasses import dataclass

from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed
from plainsql_server.directory.sharing.processes import FORGOTTEN_S


class RefusedError(Exception):
    """A later renewal of the same process was faster."""


@dataclass
class Row:
    """A process: its last renewal, its share, and when it was seen."""

    number: int = 0
    share: int = 0
    seen_s: float = 0.0


class ListModel:
    """The rows by name of the process."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def renew(self, name: str, number: int, held: int, *, now_s: float, dead: Collection[str] = ()) -> Renewed:
        """What `renew_process` of migration 0018 does."""
        own = self.rows.get(name) or Row(seen_s=now_s)
        if own.number >= number:
            raise RefusedError
        self.rows[name] = own
        self._clean(name, now_s, dead)
        others = [row for other, row in self.rows.items() if other != name]
        processes = 1 + sum(row.seen_s > now_s - UNSEEN_S for row in others)
        is_back = own.seen_s <= now_s - UNSEEN_S
        target = WHOLE // (1 + len(others) if is_back else processes)
        share = min(held, own.share)
        if share < target:
            share = max(share, min(target, WHOLE - sum(row.share for row in others)))
        own.number, own.share, own.seen_s = number, share, now_s
        return Renewed(share, target, processes, is_first=not others)

    def leave(self, name: str, now_s: float) -> None:
        """What `leave_process` does."""
        if name in self.rows:
            row = self.rows[name]
            row.share, row.seen_s, row.number = 0, now_s - UNSEEN_S, row.number + 1_000_000

    def _clean(self, name: str, now_s: float, dead: Collection[str]) -> None:
        for other, row in list(self.rows.items()):
            if other == name:
                continue
            if row.seen_s <= now_s - UNSEEN_S or other in dead:
                row.share, row.seen_s = 0, min(row.seen_s, now_s - UNSEEN_S)
            if row.seen_s <= now_s - FORGOTTEN_S:
                del self.rows[other]
