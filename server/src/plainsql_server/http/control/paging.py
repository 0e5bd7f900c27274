"""Lists in pages: how long a page is, and the cursors between pages, which are opaque to clients."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import RequestError

Record = TypeVar("Record")

# A list that people look at, and one that a program reads. Records have less than a kilobyte.
_DEFAULT_LIMIT = 100
_MAX_LIMIT = 1_000


class PageOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of every list."""

    limit: Annotated[int, Meta(ge=1, le=_MAX_LIMIT, description="Maximum number of entries.")] = _DEFAULT_LIMIT
    cursor: Annotated[
        Annotated[str, Meta(extra_json_schema={"format": "cursor"})] | None,
        Meta(description="The value of `next` from the previous page."),
    ] = None


def page(
    records: Sequence[Record], limit: int, position: Callable[[Record], str]
) -> tuple[Sequence[Record], str | None]:
    """The page and the next page's cursor. Of up to `limit` + 1 records, the last only shows that there are more."""
    here = records[:limit]
    return here, write_cursor(position(here[-1])) if len(records) > limit else None


def write_cursor(position: str) -> str:
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> str | None:
    """The position that a cursor encodes. Raises RequestError if the cursor is invalid."""
    if cursor is None:
        return None
    try:
        position = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise wrong_cursor() from error
    if not position.isprintable():
        raise wrong_cursor()
    return position


def wrong_cursor() -> RequestError:
    return RequestError("invalid_option", "The cursor is invalid. Use the value of `next` from the previous page.")
