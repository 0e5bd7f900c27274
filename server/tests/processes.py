"""Processes that tests started, with their children: looking at them, and ending them at once.

Owns the end of what cannot be asked to stop.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_END_LIMIT_S = 60
# Of a zombie, the parent has not asked for the exit code yet.
_ENDED = ("Z", "X")


def children_of(pid: int) -> list[int]:
    # Of each of its threads.
    children = [each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for of_thread in children for child in of_thread]


def stop_with_children(pid: int) -> list[int]:
    """Lets a process and its children run no further, until they get SIGCONT. Returns their ids, its own first."""
    os.kill(pid, signal.SIGSTOP)
    # A stopped parent starts no new children, but the signal may come while it is starting one.
    wait_for(lambda: _state(pid) in ("T", "t", *_ENDED), _END_LIMIT_S, lambda: f"asked to stop, and still runs: {pid}")
    children = children_of(pid)
    for each in children:
        # One that was about to end has ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    return [pid, *children]


@contextlib.contextmanager
def stopped_with_children(pid: int) -> Iterator[None]:
    """They do not move for the length of the block: what is sent to them arrives, and is not answered."""
    processes = stop_with_children(pid)
    try:
        yield
    finally:
        for each in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def kill_with_children(pid: int) -> None:
    """Ends a process and its children at once, as a power cut would. When it returns, they hold nothing any more."""
    try:
        killed = stop_with_children(pid)
    except ProcessLookupError:
        # A test may have it crash, and who started it asks for its exit code.
        return
    for each in killed:
        # One that was about to end has ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    # A process that is killed ends a little later, and until then PostgreSQL finds its shared memory in use.
    wait_for(lambda: all(map(_has_ended, killed)), _END_LIMIT_S, lambda: f"killed, and still there: {killed}")


def _has_ended(pid: int) -> bool:
    return _state(pid) in _ENDED


def _state(pid: int) -> str:
    """The letter of a process's state, as `ps` shows it; X, as of a dead one, if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_for(condition: Any, limit_s: float, otherwise: Any, *, every_s: float = 0.01) -> None:
    """Returns as soon as the condition holds; fails with the words of `otherwise` after the limit.

    Pass `every_s` if it is work to look: others need the processors.
    """
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, otherwise()
        time.sleep(every_s)


def end_all_of(directory: Path) -> None:
    """Ends every process that has to do with a folder, until there is none: some may be about to start others."""
    while found := processes_of(directory):
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(each.split()[0]), signal.SIGKILL)
        time.sleep(0.01)


def processes_of(directory: Path) -> list[str]:
    """Every process whose working folder, output, arguments or environment lie in a state folder."""
    places = {os.fsencode(directory), os.fsencode((directory / "postgres").resolve())}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            facts = [
                (entry / "cmdline").read_bytes(),
                (entry / "environ").read_bytes(),
                os.readlink(entry / "cwd").encode(),
                _output(entry).encode(),
            ]
            if any(place in fact for place in places for fact in facts):
                arguments = facts[0].decode(errors="replace").replace("\0", " ")
                found.append(f"{entry.name} {arguments}> {_output(entry)}")
    return found


def _output(entry: Path) -> str:
    """The file to which a process writes: all that tells a fork from its parent, whose arguments it has."""
    with contextlib.suppress(OSError):
        return os.readlink(entry / "fd/1")
    return ""
