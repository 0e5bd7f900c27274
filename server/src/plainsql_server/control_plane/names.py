"""Checks the format of names. The directory's CHECK constraints enforce the same rules."""

import re

from plainsql_server.core.errors import RequestError
from plainsql_server.core.names import DATABASE_ID, DATABASE_NAME

_CELL = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
TITLE_LENGTH = 100


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
