"""Lets the main loop wait for signals: a request to stop, or the exit of a child.

The signal handlers only record the signal. The main loop acts on it when it is ready, so no step is interrupted.
"""

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any, Self


class Signals:
    """Inside the `with` block, SIGINT, SIGTERM and SIGHUP request a stop, and SIGCHLD wakes `wait`."""

    def __init__(self) -> None:
        self.stop_asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        # nohup ignores SIGHUP on purpose: a `dev` started that way must outlive its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._ask)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _notice)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, limit_s: float | None) -> None:
        """Returns when a signal arrives, or after the limit."""
        select.select([self._reader], [], [], limit_s)
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            return

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.stop_asked = signal.Signals(number)


def _notice(_number: int, _frame: FrameType | None) -> None:
    """Does nothing. SIGCHLD needs a handler, or it would not wake `wait`."""


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer
