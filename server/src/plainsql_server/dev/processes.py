"""Child processes that end with `dev`, and cleanup after a `dev` that was killed.

On Linux, the kernel signals the children when `dev` dies (PR_SET_PDEATHSIG), so even `kill -9` ends everything at once.
At the next start, a process that is still running is found by its recorded pid *and* start time, or by the run's random
id in its environment. No process is signalled unless it is proven to belong to a run.
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
from typing import BinaryIO

from plainsql_server.dev import forks
from plainsql_server.dev.folder import Folder, RecordedProcess, RunState

RUN_ID_VARIABLE = "PLAINSQL_DEV_RUN"
_PR_SET_PDEATHSIG = 1
_PROC = Path("/proc")
_LEFTOVER_LIMIT_S = 5.0
_GLANCE_S = 0.01


@dataclass(frozen=True, slots=True)
class SystemAccount:
    """The unprivileged user that root's PostgreSQL runs as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Child:
    """A process that this run started. It leads its own session."""

    name: str
    process: subprocess.Popen[bytes] | forks.Fork
    log_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def exited(self) -> bool:
        """Whether it has exited. If so, kills what is left of its process group."""
        if self.process.returncode is not None:
            return True
        if not _has_exited(self.pid):
            return False
        # Kill the group before the pid is released, while it still belongs to us.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        return True

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. SIGKILL goes to its whole process group."""
        if self.exited():
            return
        if number is not signal.SIGKILL:
            os.kill(self.pid, number)
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # In its first moments, a fork leads no group yet, and has no children.
            os.kill(self.pid, number)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Launcher:
    """Starts child processes and records each one, so the next start can clean up after a crash."""

    def __init__(self, folder: Folder, state: RunState) -> None:
        self._folder = folder
        self._state = state

    def launch(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        death_signal: signal.Signals,
        account: SystemAccount | None = None,
        marked: bool = True,
    ) -> Child:
        """Starts a child in its own session, with its output in the part's log file.

        A marked child and its descendants carry the run's id; the next start kills them if they are still running. Call
        this only from the main thread, because the death signal is tied to the calling thread.
        """
        log_file = self._folder.fresh_log_file(name)
        with _opened(log_file) as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd="/",
                env=self._marked(environment) if marked else environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_dying_with_parent(death_signal),  # noqa: PLW1509 - dev has no threads
                **_identity(account),  # type: ignore[call-overload]
            )
        self._record(name, process.pid)
        return Child(name, process, log_file)

    def fork(
        self, name: str, work: Callable[[], int], *, environment: Mapping[str, str], death_signal: signal.Signals
    ) -> Child:
        """Runs `work` in a fork of this process that is otherwise like a marked child of `launch`.

        The next start finds it by its recorded pid, and the programs that it started by their mark.
        """
        log_file = self._folder.fresh_log_file(name)
        with open(os.devnull, "rb") as nothing, _opened(log_file) as output:
            process = forks.fork(
                work,
                environment=self._marked(environment),
                streams=(nothing.fileno(), output.fileno(), output.fileno()),
                prepare=_dying_with_parent(death_signal),
            )
        self._record(name, process.pid)
        return Child(name, process, log_file)

    def _marked(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return {**environment, RUN_ID_VARIABLE: self._state.run_id}

    def _record(self, name: str, pid: int) -> None:
        self._state.processes.append(RecordedProcess(name, pid, started(pid) or ""))
        self._state.save(self._folder)


def _opened(log_file: Path) -> BinaryIO:
    return open(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb")


def run_as(account: SystemAccount | None, command: Sequence[str | Path]) -> bool:
    """Whether a short command succeeds as that user. Tests what the user can access, including ACLs."""
    words = [str(word) for word in command]
    finished = subprocess.run(words, cwd="/", capture_output=True, check=False, **_identity(account))  # type: ignore[call-overload]
    return bool(finished.returncode == 0)


def started(pid: int) -> str | None:
    """The start time of a process as an opaque string, or None if it is not running."""
    if not _PROC.joinpath("self").exists():
        shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.strip() or None
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may contain spaces, so fields are counted from the last parenthesis. In proc(5), the
    # state is field 3 and the start time field 22.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return f"{_boot_id()}/{fields[19]}"


def end_leftovers(state: RunState) -> None:
    """Kills the processes of an earlier run, except PostgreSQL, which `postgres.py` stops properly."""
    known = {entry.pid: entry.started for entry in state.processes if entry.name != "postgres"}
    found = {pid: began for pid, began in known.items() if began and started(pid) == began}
    found |= _carrying(state.run_id)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until_gone(found, _LEFTOVER_LIMIT_S)


def wait_until_gone(processes: Mapping[int, str], limit_s: float) -> bool:
    """Waits until none of the processes is running. Returns False if some still are after the limit."""
    until = time.monotonic() + limit_s
    while any(started(pid) == began for pid, began in processes.items()):
        if time.monotonic() > until:
            return False
        # We have to poll: only the parent is notified when a process ends, and these are not our children.
        time.sleep(_GLANCE_S)
    return True


def running_inside(home: Path, program: str) -> dict[int, str]:
    """Processes of a program whose working directory is inside a folder: start times by pid (Linux only)."""
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
        # Processes that we can't read belong to other users, so they are not ours.
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


def _identity(account: SystemAccount | None) -> dict[str, object]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _dying_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Load libc before the fork, because the child should allocate as little as possible. `prepare` runs after the
    # change of user, which would clear the death signal.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            # The parent died before the line above, so the signal will never arrive.
            os._exit(1)

    return prepare
