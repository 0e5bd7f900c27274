"""Forks of `dev`: child processes that need not import again what `dev` has imported.

    fork(work, environment=environment, streams=(0, log, log), prepare=prepare)

A fork is set up as a new process would be: it leads a session, and it has its own environment, folder and standard
streams, the default signal handlers, and no other descriptor of its parent's. Unlike a new process, it shows its
parent's command line and first environment in /proc. Call it in a process that has one thread and no event loop.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

# Elsewhere, system libraries may have started threads that a fork does not have.
CAN_FORK = sys.platform.startswith("linux")
_STANDARD_ERROR = 2


class Fork:
    """A forked process, with the attributes of `subprocess.Popen` that `processes.Child` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Waits until it has exited. Returns the exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a fork has of its own."""

    environment: Mapping[str, str]
    streams: tuple[int, int, int]
    folder: str
    prepare: Callable[[], None] | None
    mask: Collection[int]


def fork(
    work: Callable[[], int],
    *,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    folder: str = "/",
    prepare: Callable[[], None] | None = None,
) -> Fork:
    """Runs `work` in a fork, whose exit code is what it returns. `prepare` runs first."""
    # What is buffered would be written twice.
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that comes before the fork has its own handlers must not reach the parent's.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(_Setup(environment, streams, folder, prepare, before), work)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Fork(pid)


def _become(setup: _Setup, work: Callable[[], int]) -> NoReturn:
    """The fork's whole life. It never returns, since the frames below are the parent's."""
    code = 1
    try:
        os.setsid()
        if setup.prepare is not None:
            setup.prepare()
        _forget_signal_handlers()
        _use_descriptors(setup.streams)
        os.chdir(setup.folder)
        os.environ.clear()
        os.environ.update(setup.environment)
        time.tzset()
        signal.pthread_sigmask(signal.SIG_SETMASK, setup.mask)
        code = _exit_code(work)
    except BaseException:
        # Nothing above this frame would report it.
        traceback.print_exc()
    finally:
        os._exit(code)


def _forget_signal_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # As in a new process: what is ignored stays so, and what was handled has the default handler.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _use_descriptors(streams: tuple[int, int, int]) -> None:
    """Keeps the standard ones alone. Among the others is the lock of the state folder, which must end with `dev`."""
    # First out of each other's way: one of them may have the number of another's place.
    for standard, given in enumerate([os.dup(each) for each in streams]):
        os.dup2(given, standard)
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is among them, and closed by now.
        with contextlib.suppress(OSError):
            if int(name) > _STANDARD_ERROR:
                os.close(int(name))


def _exit_code(work: Callable[[], int]) -> int:
    try:
        code = _outcome(work)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        return 1
    return code


def _outcome(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as asked:
        if isinstance(asked.code, str):
            print(asked.code, file=sys.stderr)
        return asked.code if isinstance(asked.code, int) else int(asked.code is not None)
