"""Authenticates a request and checks its scope.

Malformed, unknown and revoked secrets all get the same error, so a caller can't tell them apart. The holder of a
session that has ended is informed of that.
"""

import msgspec

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.routes import Caller, Route
from plainsql_server.http.server.requests import Request, decode_json

_HINT = "Send the header Authorization: Bearer svc_k_…"
# A page must not have the key.
_ENDED_HINT = "A page gets the next session from its own server, which creates it with its API key: POST /v1/session."
# Enough for a key and a few other fields. The caller isn't authenticated yet.
_MAX_BODY_BYTES = 64 * 1024


class BodyWithKey(msgspec.Struct):
    """A body that may contain a key. Other fields are ignored here."""

    api_key: str | None = None


_BODY_WITH_KEY = msgspec.json.Decoder(BodyWithKey)


async def authenticate(request: Request, principals: Principals, route: Route) -> Principal:
    """The caller of a request. Raises AccessError if the credential is missing or invalid. Does not check scopes."""
    secret = await _secret_in_body(request) if route.key_in_body else None
    if secret is None:
        secret = (route.read_secret or secret_of)(request)
    principal = await principals.find(secret)
    if principal is None:
        raise _invalid(principals.how_it_ended(secret))
    return principal


def _invalid(ended: str | None) -> AccessError:
    if ended is None:
        return AccessError("unauthenticated", "The API key or session token is invalid.")
    return AccessError("unauthenticated", ended, hint=_ENDED_HINT)


def check_scope(principal: Principal, route: Route) -> None:
    """Raises AccessError if the caller lacks the scope that the route requires."""
    if not principal.scopes:
        # Every key has a scope, so it is the organization that may do nothing.
        raise AccessError("forbidden", "The operator has suspended your organization.")
    scope = route.scope
    if not isinstance(scope, Caller) and not (scope is not None and principal.may(scope)):
        raise AccessError("forbidden", f"This route requires the scope {scope!s}, which your key or session lacks.")


def secret_of(request: Request) -> str:
    """The secret in the Authorization header. Raises AccessError if there is none."""
    header = request.header(b"authorization")
    if not header:
        raise AccessError("unauthenticated", "The request has no API key.", hint=_HINT)
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer":
        raise AccessError("unauthenticated", "The Authorization header must use the Bearer scheme.", hint=_HINT)
    return secret.strip()


async def _secret_in_body(request: Request) -> str | None:
    if b"authorization" in request.headers:
        return None
    await request.read_body(_MAX_BODY_BYTES, "any")
    try:
        return decode_json(request.body, _BODY_WITH_KEY).api_key
    except RequestError:
        # Report the missing key first. Other errors in the body are reported only to authenticated callers.
        return None
