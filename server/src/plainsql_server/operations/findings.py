"""What a check found: that something is as it should be, or what is wrong and what mends it.

Owns the words of `doctor`. A finding that is not good says what to do: a check without a mend is not worth having.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from plainsql_server.settings import Settings


class Grade(StrEnum):
    """How much a finding matters. Warnings are what works today and will not for ever."""

    GOOD = "good"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of one check."""

    check: str
    grade: Grade
    found: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What is examined: the settings, and what the operator added to them on the command line."""

    settings: Settings
    ca_file: Path | None = None
    disk_free_percent: float = 10.0


def good(check: str, found: str) -> Finding:
    return Finding(check, Grade.GOOD, found)


def warning(check: str, found: str, mend: str) -> Finding:
    return Finding(check, Grade.WARNING, found, mend)


def broken(check: str, found: str, mend: str) -> Finding:
    return Finding(check, Grade.BROKEN, found, mend)


Check = Callable[[Target], AsyncIterator[Finding]]
