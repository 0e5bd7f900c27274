"""Child processes that cannot outlive `dev`, and the leftovers of a `dev` that was killed.

On Linux the kernel itself signals a child when `dev` dies (PR_SET_PDEATHSIG), so that even `kill -9` ends
everything at once. What still runs at the next start is found by its recorded number *and* start time, or
by the run's random id in its environment. Owns both. Refuses to signal a process that it cannot prove to
be its own.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plainsql_server.dev.folder import Folder, Recorded, State

RUN_ID_VARIABLE = "PLAINSQL_DEV_RUN"
_PR_SET_PDEATHSIG = 1
_PROC = Path("/proc")
_LEFTOVER_LIMIT_S = 5.0
_GLANCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged user that root's PostgreSQL runs as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Child:
    """A process that this run started, the leader of a session of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def exited(self) -> bool:
        """Whether it has ended. Whatever is left of its process group is ended with it."""
        if self.process.returncode is not None:
            return True
        if not _has_exited(self.pid):
            return False
        # Before the number is given back to the system, so that the group is surely still ours.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        return True

    def send(self, number: signal.Signals) -> None:
        """Signals it; to kill it means to kill its whole group."""
        if self.exited():
            return
        if number is signal.SIGKILL:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that it wrote."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Launcher:
    """Starts children and records each, so that the next start knows what a crash left behind."""

    def __init__(self, folder: Folder, state: State) -> None:
        self._folder = folder
        self._state = state

    def launch(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        death_signal: signal.Signals,
        account: Account | None = None,
        marked: bool = True,
    ) -> Child:
        """Starts a child in a session of its own, with its output in the part's log file.

        A marked child carries the run's id, and so do its own children: the next start kills them all.
        Call it from the main thread only: the death signal is tied to the life of the calling thread.
        """
        log_file = self._folder.fresh_log_file(name)
        with open(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd="/",
                env={**environment, RUN_ID_VARIABLE: self._state.run_id} if marked else environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_dying_with_parent(death_signal),  # noqa: PLW1509 - dev has no threads
                **_identity(account),  # type: ignore[call-overload]
            )
        self._record(name, process.pid)
        return Child(name, process, log_file)

    def _record(self, name: str, pid: int) -> None:
        self._state.processes.append(Recorded(name, pid, started(pid) or ""))
        self._state.save(self._folder)


def run_as(account: Account | None, command: Sequence[str | Path]) -> bool:
    """Whether a short command succeeds for that user; tells what the user may reach, access lists included."""
    words = [str(word) for word in command]
    finished = subprocess.run(words, cwd="/", capture_output=True, check=False, **_identity(account))  # type: ignore[call-overload]
    return bool(finished.returncode == 0)


def started(pid: int) -> str | None:
    """When a process began, in a form that only equals itself; None if it does not run (any more)."""
    if not _PROC.joinpath("self").exists():
        shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.strip() or None
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces, so fields are counted from the last parenthesis: state is
    # field 3 of the manual page, the start time field 22.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return f"{_boot_id()}/{fields[19]}"


def end_leftovers(state: State) -> None:
    """Kills what an earlier run left behind, except PostgreSQL, which `cluster.py` ends with more care."""
    known = {entry.pid: entry.started for entry in state.processes if entry.name != "postgres"}
    leftovers = {pid: began for pid, began in known.items() if began and started(pid) == began}
    leftovers |= _carrying(state.run_id)
    for pid in leftovers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until_gone(leftovers, _LEFTOVER_LIMIT_S)


def wait_until_gone(processes: Mapping[int, str], limit_s: float) -> bool:
    """Waits until none of the processes runs; False if some still do after the limit."""
    until = time.monotonic() + limit_s
    while any(started(pid) == began for pid, began in processes.items()):
        if time.monotonic() > until:
            return False
        # Nobody but their parent is told when processes end, and these are not our children.
        time.sleep(_GLANCE_S)
    return True


def running_inside(home: Path, program: str) -> dict[int, str]:
    """Processes of a program that work inside a folder, by number, with their start times (Linux only)."""
    found = {}
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            entry = _PROC / str(pid)
            inside = Path(os.readlink(entry / "cwd")).is_relative_to(home)
            if inside and Path(os.readlink(entry / "exe")).name.split(" ")[0] == program:
                found[pid] = started(pid)
    return {pid: began for pid, began in found.items() if began is not None}


def _carrying(run_id: str) -> dict[int, str]:
    mark = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = {}
    for pid in _all_pids():
        # Other users' processes cannot be read, and cannot be ours.
        with contextlib.suppress(OSError):
            if mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found[pid] = started(pid)
    return {pid: began for pid, began in found.items() if began is not None and pid != os.getpid()}


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.exists() else []


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _has_exited(pid: int) -> bool:
    if not hasattr(os, "waitid"):
        return started(pid) is None
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _identity(account: Account | None) -> dict[str, object]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _dying_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Loaded before the fork: the child may not even allocate much. It runs after the change of user, which
    # would have cleared the death signal.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            # The parent died before the line above, so no signal will come.
            os._exit(1)

    return prepare
