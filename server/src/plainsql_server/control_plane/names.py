"""Names that people give to things: what they may look like.

Owns the shapes, which the directory's CHECK constraints repeat. Refuses to know whether a name is taken.
"""

import re

from plainsql_server.core.errors import RequestError
from plainsql_server.core.names import DATABASE_NAME

_CELL = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
TITLE_LENGTH = 100


def check_database_name(name: str) -> None:
    """Raises RequestError unless a database may be called that."""
    if not DATABASE_NAME.match(name):
        raise RequestError(
            "invalid_name",
            f"A database cannot be named {name!r}.",
            hint="Start with a lower-case letter; then lower-case letters, digits, - and _, 63 characters at most.",
        )


def check_cell_name(name: str) -> None:
    """Raises RequestError unless a cell may be called that."""
    if not _CELL.match(name):
        raise RequestError(
            "invalid_name",
            f"A cell cannot be named {name!r}.",
            hint="Start with a lower-case letter; then lower-case letters, digits and -, 63 characters at most.",
        )


def check_title(kind: str, name: str) -> None:
    """Raises RequestError unless an organization or a key may be called that: any printable text."""
    if not 1 <= len(name) <= TITLE_LENGTH or not name.isprintable() or name != name.strip():
        raise RequestError(
            "invalid_name",
            f"That cannot be the name of {kind}.",
            hint=f"Use 1 to {TITLE_LENGTH} printable characters that neither begin nor end with a space.",
        )
