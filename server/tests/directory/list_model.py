"""The directory's list of processes as a model, for tests without a directory.

`test_processes.py` shows that the directory does the same.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed
from plainsql_server.directory.processes import FORGOTTEN_S
from plainsql_server.limits.ledger import LeaseAsk


class RefusedError(Exception):
    """A later renewal of the same process was faster."""


@dataclass
class Row:
    """A process: since when it is listed, its last renewal, its share, and when it was seen."""

    since_s: float
    number: int = 0
    share: int = 0
    seen_s: float = 0.0


@dataclass(frozen=True)
class Answer:
    """What the directory says to a renewal."""

    since_s: float
    renewed: Renewed
    granted: list[tuple[int, int]]


class ListModel:
    """The rows by name of the process, and the leases by organization and process."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.leases: defaultdict[str, dict[str, int]] = defaultdict(dict)
        # What the rules are broken by, to show that the tests notice.
        self.ignores_numbers = False
        self.forgotten_s = FORGOTTEN_S

    def renew(
        self, name: str, number: int, held: int, asks: Sequence[LeaseAsk], *, now_s: float, dead: Collection[str] = ()
    ) -> Answer:
        """What `renew_process` of migration 0018 does."""
        own = self.rows.setdefault(name, Row(now_s))
        if own.number >= number and not self.ignores_numbers:
            raise RefusedError
        self._clean(name, now_s, dead)
        others = [row for other, row in self.rows.items() if other != name]
        processes = 1 + sum(row.seen_s > now_s - UNSEEN_S for row in others)
        granted = [self._lease(name, ask, processes) for ask in asks]
        target = WHOLE // processes
        share = min(held, own.share)
        if share < target:
            share = max(share, min(target, WHOLE - sum(row.share for row in others)))
        own.number, own.share, own.seen_s = number, share, now_s
        return Answer(own.since_s, Renewed(share, target, processes), granted)

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
            if row.seen_s <= now_s - self.forgotten_s:
                del self.rows[other]
                for leases in self.leases.values():
                    leases.pop(other, None)

    def _lease(self, name: str, ask: LeaseAsk, processes: int) -> tuple[int, int]:
        leases = self.leases[ask.organization_id]
        mine = min(ask.kept, leases.pop(name, 0))
        spare = max(0, ask.limit - sum(leases.values()) - mine)
        granted = min(spare, ask.needed + (max(0, spare - ask.needed) // (processes + 1) if ask.ahead else 0))
        if mine + granted:
            leases[name] = mine + granted
        return granted, spare - granted
