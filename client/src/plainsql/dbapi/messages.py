"""PEP 249's `messages`: PostgreSQL's notices and warnings, of a cursor's last call or of a connection's last commit.

The logger `plainsql` gets them, too, at level INFO, because libraries such as SQLAlchemy don't show `messages`.
"""

from collections.abc import Sequence

from plainsql.dbapi.exceptions import Warning  # PEP 249's name
from plainsql.errors import Notice

# PEP 249 has a class and its instance.
Message = tuple[type[Warning], Warning]


def messages_of(notices: Sequence[Notice]) -> list[Message]:
    """Logs the notices and returns them as messages. `message[1].notice` has the fields of each."""
    if not notices:
        return []
    import logging  # noqa: PLC0415  # slow to import, and seldom needed

    for notice in notices:
        logging.getLogger("plainsql").info("%s", notice)
    return [(Warning, Warning.of(notice)) for notice in notices]
