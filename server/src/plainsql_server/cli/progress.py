"""A progress bar for people, on standard error: a line for each step of the work.

Owns how it looks. Where standard error is no terminal, a line is written when a step begins, and nothing moves.
"""

import sys
import time
from types import TracebackType
from typing import Self

_WIDTH = 30
_EVERY_S = 0.1
_LABEL_WIDTH = 22
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Bar:
    """Shows a `Progress`. Left by an error, it keeps the line as it was."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._moves = self._stream.isatty()
        self._label = ""
        self._total: int | None = None
        self._in_bytes = True
        self._began_s = self._shown_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        elif self._label and self._moves:
            self._stream.write("\n")

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:
        self._finish()
        self._label, self._total, self._in_bytes, self._began_s = label, total, in_bytes, time.monotonic()
        self._show(0)

    def at(self, done: int) -> None:
        if self._moves and time.monotonic() - self._shown_s >= _EVERY_S:
            self._show(done)

    def _finish(self) -> None:
        if not self._label:
            return
        elapsed_s = time.monotonic() - self._began_s
        if self._moves:
            self._stream.write(f"\r\x1b[K{self._label:<{_LABEL_WIDTH}}{'█' * _WIDTH} 100 %  {elapsed_s:.1f} s\n")
        self._label = ""
        self._stream.flush()

    def _show(self, done: int) -> None:
        self._shown_s = time.monotonic()
        if not self._moves:
            self._stream.write(f"{self._label}\n")
        elif self._total is None:
            self._stream.write(f"\r\x1b[K{self._label:<{_LABEL_WIDTH}}…")
        else:
            self._stream.write(f"\r\x1b[K{self._label:<{_LABEL_WIDTH}}{self._bar(done, self._total)}")
        self._stream.flush()

    def _bar(self, done: int, total: int) -> str:
        share = min(1.0, done / total)
        filled = int(share * _WIDTH)
        elapsed_s = self._shown_s - self._began_s
        shown = f"{'█' * filled}{'░' * (_WIDTH - filled)} {100 * share:3.0f} %"
        if not self._in_bytes:
            return f"{shown}  {done} of {total}"
        if elapsed_s < 1 or not done:
            return shown
        left_s = elapsed_s * (1 - share) / share
        return f"{shown}  {size(done)} of {size(total)}, {size(done / elapsed_s)}/s, {left_s:.0f} s left"


def size(size_bytes: float) -> str:
    """A size for people: three digits and a unit."""
    for unit in _UNITS:
        if size_bytes < 1000 or unit == _UNITS[-1]:
            break
        size_bytes /= 1000
    return f"{size_bytes:.3g} {unit}" if size_bytes < 1000 else f"{size_bytes:.0f} {unit}"
