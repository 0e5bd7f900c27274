"""The Authorization header to a principal with the scope that a route needs.

Owns the reading of the header. Refuses to tell a malformed secret from an unknown or a revoked one.
"""

from plainsql_server.core.errors import AccessError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.principals import Principals
from plainsql_server.http.requests import Request

_HINT = "Send the header Authorization: Bearer svc_k_…"


async def authenticate(request: Request, principals: Principals, scope: Scope) -> Principal:
    """Who calls. Raises AccessError where nobody that we know does, or they may not."""
    secret = _secret(request)
    principal = principals.remembered(secret) or await principals.find(secret)
    if principal is None:
        raise AccessError("unauthenticated", "The API key is not valid.")
    if not principal.may(scope):
        raise AccessError("forbidden", f"This route needs the scope {scope!s}, which the key does not have.")
    return principal


def _secret(request: Request) -> str:
    header = request.header(b"authorization")
    if not header:
        raise AccessError("unauthenticated", "The request has no API key.", hint=_HINT)
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer":
        raise AccessError("unauthenticated", "The Authorization header is not of the kind Bearer.", hint=_HINT)
    return secret.strip()
