"""What the control plane's handlers share: bodies, ids in paths and actors."""

from typing import TypeVar

import msgspec

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import AccessError
from plainsql_server.core.ids import Kind, is_id
from plainsql_server.core.principal import Principal
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Response

Decoded = TypeVar("Decoded")

# Bodies on the control plane hold no more than names and lists of scopes.
MAX_BODY_BYTES = 64 * 1024


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


def key_id_of(request: Request) -> str:
    """The id of a key in the path. Raises AccessError if it is not a valid one."""
    text = request.path_parameter
    if not is_id(text, Kind.KEY):
        raise AccessError("key_not_found", f"There is no key {text!r}.")
    return text


def no_content() -> Response:
    """A successful answer without a body."""
    return Response(204, b"")
