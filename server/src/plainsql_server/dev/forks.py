"""Forks of `dev`: child processes that need not import again what `dev` has imported.

    fork(work, environment=environment, output=descriptor, prepare=prepare)

A fork is set up as a new process would be: it leads a session, its output goes to a file, and it has its own
environment, the default signal handlers, and no descriptor of its parent's. Unlike a new process, it shows its parent's
command line and first environment in /proc. Call it in a process that has one thread and no event loop.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
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


def fork(
    work: Callable[[], int], *, environment: Mapping[str, str], output: int, prepare: Callable[[], None] | None = None
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
            _become(work, environment, output, prepare, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Fork(pid)


def _become(
    work: Callable[[], int],
    environment: Mapping[str, str],
    output: int,
    prepare: Callable[[], None] | None,
    mask: Collection[int],
) -> NoReturn:
    """The fork's whole life. It never returns, since the frames below are the parent's."""
    code = 1
    try:
        os.setsid()
        if prepare is not None:
            prepare()
        _forget_signal_handlers()
        _use_descriptors(output)
        os.chdir("/")
        os.environ.clear()
        os.environ.update(environment)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = _exit_code(work)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _forget_signal_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # As in a new process: what is ignored stays so, and what was handled has the default handler.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _use_descriptors(output: int) -> None:
    """Keeps the standard ones alone. Among the others is the lock of the state folder, which must end with `dev`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for given, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(given, standard)
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is among them, and closed by now.
        with contextlib.suppress(OSError):
            if int(name) > _STANDARD_ERROR:
                os.close(int(name))


def _exit_code(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as asked:
        return asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
