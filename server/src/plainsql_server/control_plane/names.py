"""Checks names, and the times at which a key or a branch expires.

The directory's CHECK constraints enforce the same rules for names.
"""

import re
from datetime import datetime

from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError
from plainsql_server.core.names import DATABASE_ID, DATABASE_NAME

_CELL = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
TITLE_LENGTH = 100
# PostgreSQL knows later years, Python does not. Every time zone shows this one.
_LAST_YEAR = 9_998


def check_database_name(name: str) -> None:
    """Raises RequestError if this is not a valid database name."""
    if not DATABASE_NAME.match(name):
        raise RequestError(
            "invalid_name",
            f"Invalid database name {name!r}.",
            hint="Start with a lower-case letter, then use lower-case letters, digits, - and _. At most 63 characters.",
        )
    if DATABASE_ID.match(name):
        raise RequestError("invalid_name", f"Invalid database name {name!r}: it has the form of an id.")


def check_cell_name(name: str) -> None:
    """Raises RequestError if this is not a valid cell name."""
    if not _CELL.match(name):
        raise RequestError(
            "invalid_name",
            f"Invalid cell name {name!r}.",
            hint="Start with a lower-case letter, then use lower-case letters, digits and -. At most 63 characters.",
        )


def check_title(kind: str, name: str) -> None:
    """Raises RequestError if this is not a valid name of an organization or a key, which can be any printable text."""
    if not 1 <= len(name) <= TITLE_LENGTH or not name.isprintable() or name != name.strip():
        raise RequestError(
            "invalid_name",
            f"Invalid name for {kind}.",
            hint=f"Use 1 to {TITLE_LENGTH} printable characters, with no space at the start or end.",
        )


def check_expiry(kind: str, expires_at: datetime | None) -> None:
    """Raises RequestError if a key or a branch can't expire then. No time means that it never expires."""
    if expires_at is None:
        return
    if expires_at.tzinfo is None:
        raise RequestError("invalid_expiry", "`expires_at` needs a time zone.")
    if expires_at <= now():
        raise RequestError("invalid_expiry", "`expires_at` is in the past.")
    if expires_at.year > _LAST_YEAR:
        raise RequestError(
            "invalid_expiry",
            f"`expires_at` is too late. The last allowed year is {_LAST_YEAR}; omit it for {kind} that never expires.",
        )
