"""CPU priorities on a cell's machine: customers who have used little CPU time go first.

    Priorities(data_folder, print).run(ends_within)

PostgreSQL has no priorities, so this sets Linux nice values of customers' backends. Each database gets a free share of
the machine. A database that uses more gets a lower priority until it has paid the excess back. While CPU time is free,
no backend is slowed down. This never queries PostgreSQL, so it works even if connections or locks have run out.
"""

import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BEHIND_NICE = 10
"""A normal backend gets ten times the CPU time of a lowered one. Lower still, lock holders would block others."""

# Time between two rounds. It is random, so customers can't predict a round and evade it.
_LEAST_APART_S = 0.05
_MOST_APART_S = 0.15
# Free shares of the machine: of all databases in use together, and the most for one database. A database under ordinary
# load stays below it. A customer who spreads a load over many databases gets at most half of the machine.
_FREE_SHARE = 0.5
_FREE_SHARE_OF_ONE = 0.125
_IN_USE_S = 1.0
# Debt tolerated before the priority is lowered (about one round), and the most debt that counts, paid back in seconds.
_BURST_S = 0.1
_MOST_OWED_S = 1.0
# How long a stopping guard tries to restore priorities: Linux may accept only ten changes a second.
_BRING_BACK_S = 10.0
# Unit of process start times in /proc.
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# `postgres: o_1f… d_1f… [local] SELECT`, after the cluster's name, if it has one. Autovacuum is included, because it
# can run customers' code. There are no parallel workers: a cell's configuration disables them.
_CUSTOMERS = re.compile(rb"postgres: (?:[^\0]*?: )?(?:[bor]_[0-9a-f]+|autovacuum worker) (d_[0-9a-f]+)[ \0]")


@dataclass
class CpuAccount:
    """CPU time that a database has used beyond its free share."""

    owed_s: float = 0.0
    is_behind: bool = False
    used_at_s: float = 0.0

    def charge(self, used_s: float, free_s: float) -> None:
        """Add the CPU time used, and subtract the free share of the same period."""
        self.owed_s = min(_MOST_OWED_S, max(0.0, self.owed_s + used_s - free_s))
        self.is_behind = self.owed_s > (0.0 if self.is_behind else _BURST_S)


@dataclass
class _Backend:
    """One process, identified by its PID and start time, because PIDs are reused."""

    started_s: float
    database: str
    used_s: float
    is_behind: bool


@dataclass
class Priorities:
    """Sets the priorities of all customer backends of one PostgreSQL server, found by its data folder."""

    data_folder: Path
    tell: Callable[[str], None]
    _accounts: dict[str, CpuAccount] = field(default_factory=dict)
    _backends: dict[int, _Backend] = field(default_factory=dict)
    _looked_s: float | None = None
    _last_line: str = ""

    def run(self, ends_within: Callable[[float], bool]) -> None:
        """Run rounds until `ends_within` returns true. Failed rounds don't end it: overloaded machines need it most.

        Between two rounds it calls `ends_within(seconds)`, which waits that long or until the guard should stop. At the
        end it restores all lowered priorities.
        """
        while True:
            try:
                self.look()
            except OSError as error:
                self._tell_anew(f"cannot read processes: {error}")
            if ends_within(random.uniform(_LEAST_APART_S, _MOST_APART_S)):
                self._bring_back()
                return

    def look(self) -> None:
        """Charge each database for its backends' CPU time, and set their priorities."""
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
        # CPU time used before the first round is not charged.
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
        self._tell_anew("" if pids else f"no server is running in {self.data_folder}")
        return pids

    def _used(self, pid: int, past_s: float) -> tuple[str, float] | None:
        """Return a process's database and the CPU time to charge; None if it is not a customer's backend."""
        known, process = self._backends.get(pid), _Process.read(pid)
        if known is not None and process is not None and known.started_s == process.started_s:
            used_s, known.used_s = process.used_s - known.used_s, process.used_s
            return known.database, used_s
        self._backends.pop(pid, None)
        if process is None or (customers := _CUSTOMERS.match(_read(pid, "cmdline"))) is None:
            return None
        # An earlier guard may have lowered its priority.
        database, is_behind = customers[1].decode(), process.nice >= BEHIND_NICE
        self._backends[pid] = _Backend(process.started_s, database, process.used_s, is_behind)
        return database, process.used_at_first_sight_s(past_s)

    def _charge(self, used: dict[str, float], now_s: float, past_s: float) -> None:
        for database in (each for each, used_s in used.items() if used_s):
            self._accounts.setdefault(database, CpuAccount()).used_at_s = now_s
        in_use = sum(now_s - account.used_at_s < _IN_USE_S for account in self._accounts.values())
        share = min(_FREE_SHARE_OF_ONE, _FREE_SHARE / max(1, in_use))
        free_s = past_s * share * len(os.sched_getaffinity(0))
        for database, account in list(self._accounts.items()):
            was_behind = account.is_behind
            account.charge(used.get(database, 0.0), free_s)
            if account.is_behind != was_behind:
                self.tell(f"{database}: {'priority lowered' if account.is_behind else 'priority restored'}")
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
            # Linux limits changes of autogroups. The next round tries again.
            return
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            # The process has ended, or the guard may not raise priorities, which the command has reported.
            pass
        backend.is_behind = is_behind

    def _tell_anew(self, text: str) -> None:
        if text and text != self._last_line:
            self.tell(text)
        self._last_line = text


def _children(data_folder: Path) -> set[int]:
    """Return the server's processes; none while it is down or just starting."""
    try:
        postmaster = (data_folder / "postmaster.pid").read_text().partition("\n")[0]
        return {int(pid) for pid in _children_file(postmaster).read_text().split()} if postmaster else set()
    except (FileNotFoundError, ProcessLookupError):
        return set()


def _children_file(pid: int | str) -> Path:
    """Return the file where Linux lists a process's children."""
    return Path(f"/proc/{pid}/task/{pid}/children")


def can_see() -> bool:
    """Return whether the system reports a process's children and their CPU time."""
    return _children_file(os.getpid()).exists() and Path("/proc/self/schedstat").exists()


def may_bring_back() -> bool:
    """Return whether this process may raise priorities: CAP_SYS_NICE, capability 23."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> 23 & 1)


@dataclass(frozen=True, slots=True)
class _Process:
    started_s: float
    nice: int
    used_s: float

    @classmethod
    def read(cls, pid: int) -> "_Process | None":
        """Read a process; None if it has ended."""
        # The fields after the process name, field 2, in parentheses. nice is field 19, the start time field 22.
        fields, used_ns = _read(pid, "stat").rpartition(b")")[2].split(), _read(pid, "schedstat").partition(b" ")[0]
        if not fields or not used_ns:
            return None
        # CPU times in stat have a resolution of 10 ms, longer than many backends live; schedstat has nanoseconds.
        return cls(int(fields[19]) * _TICK_S, int(fields[16]), int(used_ns) / 1e9)

    def used_at_first_sight_s(self, past_s: float) -> float:
        """Return the CPU time to charge a process that did not exist in the last round, `past_s` ago.

        This is its CPU share so far, extrapolated to the whole period, and more than it has used. But a process that
        lives for half a period is seen only every other time, and never at its end: on average, the charge is right.
        """
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.started_s - _TICK_S / 2
        share = min(1.0, self.used_s / max(age_s, _TICK_S / 2))
        return max(self.used_s, share * past_s)


def _read(pid: int, name: str) -> bytes:
    """Read a file of the process from /proc; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # fast: called ten times a second per backend
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _set_nice(pid: int, nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    # With autogroup scheduling, each backend is its own group, and nice values count only between groups.
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(nice))
