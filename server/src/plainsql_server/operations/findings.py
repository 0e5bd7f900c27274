"""A finding of `doctor`: something is fine, or something is wrong and this is the fix.

    yield broken("directory", "The directory is not migrated.", "Run `plainsql-server migrate`.")

Every warning and every broken finding says what to do.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from plainsql_server.settings import Settings


class Grade(StrEnum):
    """How serious a finding is. A warning works today but may fail later."""

    GOOD = "good"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check, and what to do about it."""

    check: str
    grade: Grade
    found: str
    fix: str | None = None


# Below this, a disk that grows as usual leaves an operator some days.
DISK_FREE_PERCENT = 10.0
# A nightly run may begin late and take some time.
BACKUP_MAX_AGE_H = 26.0


@dataclass(frozen=True, slots=True)
class Target:
    """What to check: the settings and the command line options."""

    settings: Settings
    ca_file: Path | None = None
    disk_free_percent: float = DISK_FREE_PERCENT
    backup_max_age_h: float = BACKUP_MAX_AGE_H


def good(check: str, found: str) -> Finding:
    return Finding(check, Grade.GOOD, found)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Grade.WARNING, found, fix)


def broken(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Grade.BROKEN, found, fix)


Check = Callable[[Target], AsyncIterator[Finding]]
