"""Hides transaction times in rows that are hashed, so that two runs of one transaction have the same digests.

    times = TransactionTimes(b"2026-11-17T09:46:06.123456Z", [b"2026-11-17T09:45:59.000000Z"])
    hidden = times.hide(row)
    slices = times.hide_in_slices(long_row)

Looking for times takes much longer than hashing, and a customer decides what is in a row. So a long row is searched in
slices, between which other requests can run, and `cost_bytes` counts what was searched.
"""

import re
from collections.abc import Iterable, Iterator

# A date and time as PostgreSQL writes it in UTC, alone or in an array, a row or JSON.
_TIME = re.compile(rb"(\d{4,6}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(?!\d)")
# No text that the pattern matches, with the byte after it, is longer.
_LONGEST = 32
# A row is searched for this many minutes one by one. With more of them, it is searched for their dates.
_MAX_MINUTES = 8
# The earlier times of so many dates count. A rehearsal was hardly days ago.
MAX_DATES = 3
# A longer row is searched in slices of this size.
SLICE_BYTES = 1024
# How many bytes can be hashed, roughly, while one is searched, and while a time is compared.
_COST_OF_BYTE = 4
_COST_OF_TIME = 256
# UTF-8 never contains this byte, and it is not what separates values either. So no other row looks like one with it.
_TOKEN = b"\xff"

Parts = tuple[bytes, bytes, bytes]


class TransactionTimes:
    """The times that are hashed as one token: that of this transaction, and those of its dry runs."""

    def __init__(self, now: bytes | None = None, earlier: Iterable[bytes] = ()) -> None:
        """Times are in UTC: `2026-11-17T09:46:06.123456Z`. Of the earlier ones, those of the latest dates count."""
        own = set() if now is None else _read([now])
        others = _read(earlier)
        latest = sorted({date for date, _, _ in others}, key=lambda date: (len(date), date))
        dates = {date for date, _, _ in own}.union(latest[-MAX_DATES:])
        self._times = frozenset(time for time in own | others if time[0] in dates)
        # Rows without any of these need no closer look.
        minutes = {date + between + time[:5] for date, time, _ in self._times for between in (b" ", b"T")}
        starts = {date + between for date in dates for between in (b" ", b"T")}
        self._signs = sorted(minutes if len(minutes) <= 2 * _MAX_MINUTES else starts)
        # What was searched so far, as bytes to hash that would take about as long.
        self.cost_bytes = 0

    def hide(self, row: bytes) -> bytes:
        """The row with the token instead of these times."""
        if not self._may_be_in(row):
            return row
        self.cost_bytes += _COST_OF_BYTE * len(row)
        return _TIME.sub(self._token, row)

    def hide_in_slices(self, row: bytes) -> Iterator[bytes]:
        """The same, one part after the other. How it is cut makes no difference."""
        done = 0
        for start in range(0, len(row), SLICE_BYTES):
            stop = min(start + SLICE_BYTES, len(row))
            part: list[bytes] = []
            # A time that begins in this part may end after it, and overlap with one that begins there.
            if self._may_be_in(row[start : stop + 2 * _LONGEST]):
                self.cost_bytes += _COST_OF_BYTE * (stop - start)
                for match in _TIME.finditer(row, max(start, done), min(stop + _LONGEST, len(row))):
                    if match.start() >= stop:
                        break
                    part += (row[done : match.start()], self._token(match))
                    done = match.end()
            part.append(row[done:stop])
            done = max(done, stop)
            yield b"".join(part)

    def _may_be_in(self, text: bytes) -> bool:
        for sign in self._signs:  # noqa: SIM110  # half the time of any() with a generator
            if sign in text:
                return True
        return False

    def _token(self, match: re.Match[bytes]) -> bytes:
        self.cost_bytes += _COST_OF_TIME
        return _TOKEN if _parts(match) in self._times else match[0]


def _read(times: Iterable[bytes]) -> set[Parts]:
    """The parts of times that are written as in answers."""
    split = [time.partition(b"T") for time in times]
    return {(date, rest[:8], rest[9:15].rstrip(b"0")) for date, _, rest in split}


def _parts(match: re.Match[bytes]) -> Parts:
    """The parts of a time. PostgreSQL leaves out the zeros at the end of a fraction."""
    return match[1], match[2], (match[3] or b"").rstrip(b"0")
