"""A progress bar on standard error, with one line per step.

    with Bar() as bar:
        bar.step("data", total_bytes)
        bar.at(done_bytes)

If standard error is not a terminal, each step prints one line when it starts, and nothing is redrawn.
"""

import os
import sys
import time
from types import TracebackType
from typing import Self

_WIDTH = 30
_EVERY_S = 0.1
_LABEL_WIDTH = 22
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Bar:
    """Draws a `Progress`. If the block raises, the last line stays as it was."""

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
            self._write(1.0, f" 100 %  {elapsed_s:.1f} s")
            self._stream.write("\n")
        self._label = ""
        self._stream.flush()

    def _show(self, done: int) -> None:
        self._shown_s = time.monotonic()
        if not self._moves:
            self._stream.write(f"{self._label}\n")
        elif self._total is None:
            self._stream.write(f"\r\x1b[K{self._label:<{_LABEL_WIDTH}}…")
        else:
            share = min(1.0, done / max(1, self._total))
            self._write(share, f" {100 * share:3.0f} %{self._pace(done, self._total, share)}")
        self._stream.flush()

    def _write(self, share: float, text: str) -> None:
        """Redraw the line, no longer than the terminal is wide: a wrapped line can't be overwritten."""
        width = max(0, min(_WIDTH, self._columns() - _LABEL_WIDTH - len(text)))
        filled = int(share * width)
        line = f"{self._label:<{_LABEL_WIDTH}}{'█' * filled}{'░' * (width - filled)}{text}"
        self._stream.write(f"\r\x1b[K{line[: self._columns()]}")

    def _columns(self) -> int:
        # A terminal of unknown width reports 0. The last column stays free, because some terminals wrap there.
        return (os.get_terminal_size(self._stream.fileno()).columns or 80) - 1

    def _pace(self, done: int, total: int, share: float) -> str:
        elapsed_s = self._shown_s - self._began_s
        if not self._in_bytes:
            return f"  {done} of {total}"
        if elapsed_s < 1 or not done:
            return ""
        left_s = elapsed_s * (1 - share) / max(0.001, share)
        return f"  {size(done)} of {size(total)}, {size(done / elapsed_s)}/s, {left_s:.0f} s left"


def size(size_bytes: float) -> str:
    """Format a size for people: three digits and a unit."""
    for unit in _UNITS:
        if size_bytes < 1000 or unit == _UNITS[-1]:
            break
        size_bytes /= 1000
    return f"{size_bytes:.3g} {unit}" if size_bytes < 1000 else f"{size_bytes:.0f} {unit}"
