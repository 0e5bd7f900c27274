"""Who goes first where the processors of a cell's machine are short: customers who have taken little of them.

Owns the priorities of customers' backends, on the machine that they run on. PostgreSQL has none of its own, so these
are the operating system's (Linux's): each database has a share of the machine for free, and one that takes more goes
behind the others until it has paid that back. Refuses to slow anybody where nobody else wants the processors, and asks
PostgreSQL nothing, so that it works where connections or locks have run out.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BEHIND_NICE = 10
"""A backend in front gets ten times the time of one behind. Still lower, one that holds a lock would hold others up."""

_LOOK_EVERY_S = 0.1
# Of the machine: what all databases that are in use have for free together, and the most that one has. One that is
# asked all day takes less; a customer who spreads a load over many databases gets no more than half of the machine.
_FREE_SHARE = 0.5
_FREE_SHARE_OF_ONE = 0.125
_IN_USE_S = 1.0
# As long as one look sees; and what is forgiven within seconds.
_BURST_S = 0.1
_MOST_OWED_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# `postgres: o_1f… d_1f… [local] SELECT`, after the cluster's name, if it has one. Automatic maintenance runs code of
# customers. There are no parallel workers: a cell's configuration lets none start.
_CUSTOMERS = re.compile(rb"postgres: (?:[^\0]*?: )?(?:[or]_[0-9a-f]+|autovacuum worker) (d_[0-9a-f]+)[ \0]")


@dataclass
class Account:
    """What a database has taken of the processors beyond its free share."""

    owed_s: float = 0.0
    is_behind: bool = False
    used_at_s: float = 0.0

    def charge(self, used_s: float, free_s: float) -> None:
        """Counts what was used, and what was free meanwhile."""
        self.owed_s = min(_MOST_OWED_S, max(0.0, self.owed_s + used_s - free_s))
        self.is_behind = self.owed_s > (0.0 if self.is_behind else _BURST_S)


@dataclass
class _Backend:
    database: str
    used_s: float
    is_behind: bool


@dataclass
class Priorities:
    """Of the customers' backends of one PostgreSQL server, by its data folder."""

    data_folder: Path
    tell: Callable[[str], None]
    _accounts: dict[str, Account] = field(default_factory=dict)
    _backends: dict[int, _Backend] = field(default_factory=dict)
    _looked_s: float | None = None
    _told: str = ""

    def run(self) -> None:
        """Looks again and again, whatever a look fails of: machines that are short of everything need it most."""
        while True:
            try:
                self.look()
            except OSError as error:
                self._tell_anew(f"cannot look: {error}")
            time.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Charges each database for what its backends have used, and puts them where they belong."""
        now_s = time.monotonic()
        is_first, past_s = self._looked_s is None, now_s - (self._looked_s or now_s)
        self._looked_s = now_s
        self._follow(self._pids(), is_first)
        self._charge(self._used(), now_s, past_s)
        for pid, backend in self._backends.items():
            self._place(pid, backend)

    def _pids(self) -> set[int]:
        pids = _children(self.data_folder)
        self._tell_anew("" if pids else f"no server runs in {self.data_folder}")
        return pids

    def _follow(self, pids: set[int], is_first: bool) -> None:
        for gone in self._backends.keys() - pids:
            del self._backends[gone]
        for pid in pids - self._backends.keys():
            if customers := _CUSTOMERS.match(_read(pid, "cmdline")):
                # What it used before anybody looked at all is nobody's debt; what a new one did since the last look is.
                used_s = _processor_s(pid) if is_first else 0.0
                # It may have been put behind by one of us that has ended since.
                self._backends[pid] = _Backend(customers[1].decode(), used_s, _nice(pid) >= BEHIND_NICE)

    def _used(self) -> dict[str, float]:
        """Since the last look, by database."""
        used: dict[str, float] = {}
        for pid, backend in self._backends.items():
            used_s = _processor_s(pid)
            used[backend.database] = used.get(backend.database, 0.0) + max(0.0, used_s - backend.used_s)
            backend.used_s = used_s
        return used

    def _charge(self, used: dict[str, float], now_s: float, past_s: float) -> None:
        for database in (each for each, used_s in used.items() if used_s):
            self._accounts.setdefault(database, Account()).used_at_s = now_s
        in_use = sum(now_s - account.used_at_s < _IN_USE_S for account in self._accounts.values())
        share = min(_FREE_SHARE_OF_ONE, _FREE_SHARE / max(1, in_use))
        free_s = past_s * share * len(os.sched_getaffinity(0))
        for database, account in list(self._accounts.items()):
            was_behind = account.is_behind
            account.charge(used.get(database, 0.0), free_s)
            if account.is_behind != was_behind:
                self.tell(f"{database} {'goes behind the others' if account.is_behind else 'is level again'}")
            if not account.owed_s and now_s - account.used_at_s >= _IN_USE_S:
                del self._accounts[database]

    def _place(self, pid: int, backend: _Backend) -> None:
        account = self._accounts.get(backend.database)
        is_behind = account is not None and account.is_behind
        if is_behind == backend.is_behind:
            return
        try:
            _set_nice(pid, BEHIND_NICE if is_behind else 0)
        except (ProcessLookupError, FileNotFoundError, BlockingIOError):
            # It has ended; or Linux takes no more changes of groups for the moment, and takes it at the next look.
            return
        except PermissionError:
            # Without the capability one can put processes behind, and not bring them back; the command has said so.
            pass
        backend.is_behind = is_behind

    def _tell_anew(self, text: str) -> None:
        if text and text != self._told:
            self.tell(text)
        self._told = text


def _children(data_folder: Path) -> set[int]:
    """The processes of the server; none while it is down or has only begun to start."""
    try:
        postmaster = (data_folder / "postmaster.pid").read_text().partition("\n")[0]
        return {int(pid) for pid in children_file(postmaster).read_text().split()} if postmaster else set()
    except (FileNotFoundError, ProcessLookupError):
        return set()


def children_file(pid: int | str) -> Path:
    """Where Linux lists the processes that this one has started."""
    return Path(f"/proc/{pid}/task/{pid}/children")


def may_bring_back() -> bool:
    """Whether this process may give others a better priority: CAP_SYS_NICE, the 23rd of its capabilities."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> 23 & 1)


def _processor_s(pid: int) -> float:
    # The 14th and 15th field are the ticks in user and in system mode.
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def _nice(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[16]) if fields else 0


def _fields(pid: int) -> list[bytes]:
    # Those after the name, which is in parentheses and the second.
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    """A file of the process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # ten times a second for each backend
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _set_nice(pid: int, nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    # Where Linux groups processes by session, each backend is a group of its own, and only groups compete.
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(nice))
