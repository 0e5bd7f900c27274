"""Who goes first where the processors of a cell's machine are short: customers who have taken little of them.

Owns the priorities of customers' backends, on the machine that they run on. PostgreSQL has none of its own, so these
are the operating system's (Linux's): each database has a share of the machine for free, and one that takes more goes
behind the others until it has paid that back. Refuses to slow anybody where nobody else wants the processors, and asks
PostgreSQL nothing, so that it works where connections or locks have run out.
"""

import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BEHIND_NICE = 10
"""A backend in front gets ten times the time of one behind. Still lower, one that holds a lock would hold others up."""

# Between two looks, and at no moments that anybody could know and step aside at.
_LEAST_APART_S = 0.05
_MOST_APART_S = 0.15
# Of the machine: what all databases that are in use have for free together, and the most that one has. One that is
# asked all day takes less; a customer who spreads a load over many databases gets no more than half of the machine.
_FREE_SHARE = 0.5
_FREE_SHARE_OF_ONE = 0.125
_IN_USE_S = 1.0
# As long as one look sees; and what is forgiven within seconds.
_BURST_S = 0.1
_MOST_OWED_S = 1.0
# How long a guard that ends tries to bring back those who are behind: Linux may take ten a second.
_BRING_BACK_S = 10.0
# When a process was started is told in these.
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
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
    """One process, which is known by its id and by when it was started: ids are given again."""

    started_s: float
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

    def run(self, ends_within: Callable[[float], bool]) -> None:
        """Looks again and again, whatever a look fails of: machines that are short of everything need it most.

        Between two looks it waits in `ends_within`, for so many seconds or until the end is wanted. Then it brings back
        whoever is behind.
        """
        while True:
            try:
                self.look()
            except OSError as error:
                self._tell_anew(f"cannot look: {error}")
            if ends_within(random.uniform(_LEAST_APART_S, _MOST_APART_S)):
                self._bring_back()
                return

    def look(self) -> None:
        """Charges each database for what its backends have used, and puts them where they belong."""
        now_s = time.monotonic()
        is_first, past_s = self._looked_s is None, now_s - (self._looked_s or now_s)
        self._looked_s = now_s
        pids = self._pids()
        for gone in self._backends.keys() - pids:
            del self._backends[gone]
        used: dict[str, float] = {}
        for pid in pids:
            if (found := self._used(pid, past_s)) is not None:
                used[found[0]] = used.get(found[0], 0.0) + found[1]
        # What was used before anybody looked at all is nobody's debt.
        self._charge({} if is_first else used, now_s, past_s)
        for pid, backend in self._backends.items():
            self._place(pid, backend)

    def _bring_back(self) -> None:
        self._accounts.clear()
        end_s = time.monotonic() + _BRING_BACK_S
        while any(backend.is_behind for backend in self._backends.values()) and time.monotonic() < end_s:
            for pid, backend in self._backends.items():
                self._place(pid, backend)
            time.sleep(_LEAST_APART_S)

    def _pids(self) -> set[int]:
        pids = _children(self.data_folder)
        self._tell_anew("" if pids else f"no server runs in {self.data_folder}")
        return pids

    def _used(self, pid: int, past_s: float) -> tuple[str, float] | None:
        """The process's database and what it is charged for since the last look; None if it is no customer's."""
        known, process = self._backends.get(pid), _Process.read(pid)
        if known is not None and process is not None and known.started_s == process.started_s:
            used_s, known.used_s = process.used_s - known.used_s, process.used_s
            return known.database, used_s
        self._backends.pop(pid, None)
        if process is None or (customers := _CUSTOMERS.match(_read(pid, "cmdline"))) is None:
            return None
        # It may have been put behind by one of us that has ended since.
        database, is_behind = customers[1].decode(), process.nice >= BEHIND_NICE
        self._backends[pid] = _Backend(process.started_s, database, process.used_s, is_behind)
        return database, process.used_at_first_sight_s(past_s)

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
        except BlockingIOError:
            # Linux takes no more changes of groups for the moment; it will take this one at the next look.
            return
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            # It has ended; or this process may only put others behind, not bring them back, as the command has said.
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
        return {int(pid) for pid in _children_file(postmaster).read_text().split()} if postmaster else set()
    except (FileNotFoundError, ProcessLookupError):
        return set()


def _children_file(pid: int | str) -> Path:
    """Where Linux lists the processes that this one has started."""
    return Path(f"/proc/{pid}/task/{pid}/children")


def can_see() -> bool:
    """Whether the system tells what is looked for: which processes one has started, and what each has used."""
    return _children_file(os.getpid()).exists() and Path("/proc/self/schedstat").exists()


def may_bring_back() -> bool:
    """Whether this process may give others a better priority: CAP_SYS_NICE, the 23rd of its capabilities."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> 23 & 1)


@dataclass(frozen=True, slots=True)
class _Process:
    started_s: float
    nice: int
    used_s: float

    @classmethod
    def read(cls, pid: int) -> "_Process | None":
        """None if it has ended."""
        # The fields after the name, which is in parentheses and the second: nice is the 19th, the start the 22nd.
        fields, used_ns = _read(pid, "stat").rpartition(b")")[2].split(), _read(pid, "schedstat").partition(b" ")[0]
        if not fields or not used_ns:
            return None
        # The times among the fields are whole hundredths, which is more than many live.
        return cls(int(fields[19]) * _TICK_S, int(fields[16]), int(used_ns) / 1e9)

    def used_at_first_sight_s(self, past_s: float) -> float:
        """What one is charged for that was not there at the last look, so long ago.

        The share of the processor that it has had until now, for all the time since. That is more than it has used. But
        one who lives for half that time is seen every other time, and never at its end: over many, it is what they use.
        """
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.started_s - _TICK_S / 2
        share = min(1.0, self.used_s / max(age_s, _TICK_S / 2))
        return max(self.used_s, share * past_s)


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
