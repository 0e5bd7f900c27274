"""Reads the header Neon-Connection-String, by which the Neon driver names the caller and the database.

    connection_of(request).database    # postgresql://anyone:svc_k_…@api.example.com/main

The password is an API key or a session token. User, host and options are ignored.
"""

from typing import NamedTuple
from urllib.parse import unquote

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.server.requests import Request

CONNECTION_STRING = b"neon-connection-string"
_SCHEMES = ("postgresql", "postgres")
_HINT = "It looks like this: postgresql://user:svc_k_…@host/database"


class NeonConnection(NamedTuple):
    """The password and the database of a connection string, decoded. Each may be missing."""

    secret: str | None
    database: str | None


_NONE = NeonConnection(None, None)


def connection_of(request: Request) -> NeonConnection:
    """What the connection string of a request says. Raises RequestError if it isn't one."""
    text = request.header(CONNECTION_STRING)
    if text is None:
        return _NONE
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise RequestError("malformed_request", "Neon-Connection-String isn't a connection string.", hint=_HINT)
    # A password may contain an `@`, and a `/`, `?` or `#` only as %2F, %3F or %23.
    rest = rest.partition("?")[0].partition("#")[0]
    authority, _, path = rest.partition("/")
    password = authority.rpartition("@")[0].partition(":")[2]
    return NeonConnection(unquote(password) or None, unquote(path) or None)


def neon_secret_of(request: Request) -> str:
    """The secret in the Authorization header or, without one, in the connection string. Raises ServiceError."""
    if b"authorization" in request.headers:
        return secret_of(request)
    secret = connection_of(request).secret
    if secret is None:
        raise AccessError("unauthenticated", "The request has no API key.", hint=_HINT)
    return secret
