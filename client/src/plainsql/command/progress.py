"""A progress line on standard error: rows, rate and time left. Without a terminal, only a summary at the end.

The time left is computed from the share of the file's bytes, or of the rows, that is done. PostgreSQL's row estimate
may be wrong, so a time based on it is marked `about`, and disappears once there are more rows than estimated.
"""

import sys
import time

from plainsql.command.terminal import say

_REDRAW_S = 0.1
_BAR_CELLS = 24


class Progress:
    """Counts rows and bytes from its creation on. `total_rows` may be an estimate.

    Without a total, no time left is shown.
    """

    def __init__(self, verb: str, *, total_bytes: int | None = None, total_rows: int | None = None) -> None:
        self._verb = verb
        self.total_bytes = total_bytes
        self.total_rows = total_rows
        self._began = time.monotonic()
        self._drawn = 0.0
        self.rows = 0
        self.done_bytes = 0

    def advance(self, rows: int, size_bytes: int) -> None:
        self.rows += rows
        self.done_bytes += size_bytes
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._drawn > _REDRAW_S:
            self._drawn = now
            sys.stderr.write("\r" + self.line(now) + "\x1b[K")
            sys.stderr.flush()

    def line(self, now: float) -> str:
        """The bar, the rows, the rate and the time left."""
        elapsed_s = max(now - self._began, 0.001)
        counts = f"{self.rows:,} rows, {self.rows / elapsed_s:,.0f} rows/s"
        share = self._share()
        if share is None:
            return f"{self._verb} {counts}"
        about = "" if self.total_bytes else "about "
        left = f", {about}{_duration(elapsed_s / share * (1 - share))} left" if share else ""
        filled = round(share * _BAR_CELLS)
        return f"{self._verb} [{'█' * filled}{'·' * (_BAR_CELLS - filled)}] {share:4.0%} {counts}{left}"

    def _share(self) -> float | None:
        if self.total_bytes:
            return min(1.0, self.done_bytes / self.total_bytes)
        if self.total_rows and self.rows <= self.total_rows:
            return self.rows / self.total_rows
        return None

    def finish(self, what: str) -> None:
        """Prints the summary."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        elapsed_s = max(time.monotonic() - self._began, 0.001)
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        say(f"{what}: {rows} in {elapsed_s:.1f} s, {self.rows / elapsed_s:,.0f} rows/s.")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
