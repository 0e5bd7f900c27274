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
# The lengths of what follows the date, and the minute, in an answer.
_TIME_OF_DAY = len(b"T09:46:06.123456Z")
_SECONDS = len(b":06.123456Z")
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


class TransactionTimes:
    """The times that are hashed as one token: that of this transaction, and those of its dry runs."""

    def __init__(self, now: bytes | None = None, earlier: Iterable[bytes] = ()) -> None:
        """Times are in UTC: `2026-11-17T09:46:06.123456Z`. Of the earlier ones, those of the latest dates count."""
        times = frozenset(earlier)
        # There may be thousands, so no function is called for each.
        latest = sorted({each[:-_TIME_OF_DAY] for each in times}, key=lambda date: (len(date), date))
        dates = set(latest[-MAX_DATES:])
        if len(dates) < len(latest):
            times = frozenset([each for each in times if each[:-_TIME_OF_DAY] in dates])
        if now is not None:
            times, dates = times | {now}, dates | {now[:-_TIME_OF_DAY]}
        self._times = times
        # Rows without any of these need no closer look.
        minutes = _first_minutes(times)
        signs = minutes if len(minutes) <= _MAX_MINUTES else {date + b"T" for date in dates}
        self._signs = sorted([*signs, *(sign.replace(b"T", b" ") for sign in signs)])
        # What was searched so far, as bytes to hash that would take about as long.
        self.cost_bytes = 0

    def hide(self, row: bytes) -> bytes:
        """The row with the token instead of these times."""
        if not self._may_be_in(row):
            return row
        self.cost_bytes += _COST_OF_BYTE * len(row)
        return _TIME.sub(self._token, row)

    def hide_in_slices(self, row: bytes | memoryview) -> Iterator[bytes]:
        """The same, one part after the other. How it is cut makes no difference."""
        done = 0
        for start in range(0, len(row), SLICE_BYTES):
            stop = min(start + SLICE_BYTES, len(row))
            # A time that begins in this part may end after it, and overlap with one that begins there.
            text = bytes(row[start : stop + 2 * _LONGEST])
            if not self._may_be_in(text):
                yield text[done - start : stop - start]
            else:
                part: list[bytes | memoryview] = []
                self.cost_bytes += _COST_OF_BYTE * (stop - start)
                for match in _TIME.finditer(row, done, min(stop + _LONGEST, len(row))):
                    if match.start() >= stop:
                        break
                    part += (row[done : match.start()], self._token(match))
                    done = match.end()
                part.append(row[done:stop])
                yield b"".join(part)
            done = max(done, stop)

    def _may_be_in(self, text: bytes) -> bool:
        for sign in self._signs:  # noqa: SIM110  # half the time of any() with a generator
            if sign in text:
                return True
        return False

    def _token(self, match: re.Match[bytes]) -> bytes:
        self.cost_bytes += _COST_OF_TIME
        return _TOKEN if _full(match) in self._times else match[0]


def _first_minutes(times: Iterable[bytes]) -> set[bytes]:
    """Their minutes, or one too many of them."""
    minutes = set()
    for each in times:
        minutes.add(each[:-_SECONDS])
        if len(minutes) > _MAX_MINUTES:
            break
    return minutes


def _full(match: re.Match[bytes]) -> bytes:
    """A time as it is written in answers. PostgreSQL leaves out the zeros at the end of a fraction."""
    return b"%bT%b.%bZ" % (match[1], match[2], (match[3] or b"").ljust(6, b"0"))
