"""The Authorization header to a principal, and whether that has the scope that a route needs.

Owns the reading of the header. Refuses to tell a malformed secret from an unknown or a revoked one.
"""

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.key_body import body_with_key
from plainsql_server.http.app.routes import Caller, Route
from plainsql_server.http.server.requests import Request, decode_json

_HINT = "Send the header Authorization: Bearer svc_k_…"
# A key and little else: nobody is authenticated yet.
_MAX_BODY_BYTES = 64 * 1024


async def authenticate(request: Request, principals: Principals, route: Route) -> Principal:
    """Who calls. Raises AccessError where nobody that we know does. Whether they may is `check_scope`'s."""
    secret = await _secret_in_body(request) if route.key_in_body else None
    if secret is None:
        secret = secret_of(request)
    principal = await principals.find(secret)
    if principal is None:
        raise AccessError("unauthenticated", "The API key is not valid.")
    return principal


def remembered(request: Request, principals: Principals, route: Route) -> Principal | None:
    """Who calls, if they called a moment ago, else None: then `authenticate` must say. Raises as that does."""
    return None if route.key_in_body else principals.remembered(secret_of(request))


def check_scope(principal: Principal, route: Route) -> None:
    """Raises AccessError where the caller may not call the route."""
    scope = route.scope
    if scope is not Caller.ANYBODY_KNOWN and not (scope is not None and principal.may(scope)):
        raise AccessError("forbidden", f"This route needs the scope {scope!s}, which the key does not have.")


def secret_of(request: Request) -> str:
    """The secret in the request's header. Raises AccessError where there is none."""
    header = request.header(b"authorization")
    if not header:
        raise AccessError("unauthenticated", "The request has no API key.", hint=_HINT)
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer":
        raise AccessError("unauthenticated", "The Authorization header is not of the kind Bearer.", hint=_HINT)
    return secret.strip()


async def _secret_in_body(request: Request) -> str | None:
    if b"authorization" in request.headers:
        return None
    # Nobody was authenticated before it, so nobody is to be authenticated anew.
    await request.await_body(_MAX_BODY_BYTES, "any")
    body = await request.body(_MAX_BODY_BYTES, "any")
    try:
        return decode_json(body, body_with_key).api_key
    except RequestError:
        # That there is no key comes first; what else is wrong with the body is for those who have one.
        return None
