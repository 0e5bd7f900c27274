"""Helpers that the control plane's handlers share: bodies, paginated lists, cursors and actors.

Cursors are opaque to clients.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.ids import Kind, is_id
from plainsql_server.core.principal import Principal
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Response

Decoded = TypeVar("Decoded")
Record = TypeVar("Record")

# Bodies on the control plane hold no more than names and lists of scopes.
MAX_BODY_BYTES = 64 * 1024
_DEFAULT_LIMIT = 100
_MAX_LIMIT = 1_000


class PageOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of every list."""

    limit: Annotated[int, Meta(ge=1, le=_MAX_LIMIT, description="Maximum number of entries.")] = _DEFAULT_LIMIT
    cursor: Annotated[
        Annotated[str, Meta(extra_json_schema={"format": "cursor"})] | None,
        Meta(description="The value of `next` from the previous page."),
    ] = None


def decoded_body(request: Request, decoder: "msgspec.json.Decoder[Decoded]") -> Decoded:
    """The JSON body as a model. An empty body counts as {}. Raises RequestError if it is invalid."""
    return decode_json(request.body or b"{}", decoder)


def administrator(request: Request, principal: Principal) -> Actor:
    """The actor that manages the organization. Raises AccessError if the credential is bound to one database."""
    if principal.database is not None:
        raise AccessError(
            "forbidden",
            f"This key or session is bound to the database {principal.database!r} and can't manage the organization.",
        )
    return Actor.of(principal, request.id)


def id_of(request: Request, kind: Kind, code: str) -> str:
    """The id in the path. Raises AccessError with `code` if it is not a valid id of this kind."""
    text = request.path_parameter
    if not is_id(text, kind):
        raise AccessError(code, f"There is no {'database' if kind is Kind.DATABASE else 'key'} {text!r}.")
    return text


def no_content() -> Response:
    """A successful answer without a body."""
    return Response(204, b"")


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
