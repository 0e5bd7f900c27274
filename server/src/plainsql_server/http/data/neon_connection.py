"""Reads the header Neon-Connection-String, by which the Neon driver names the caller and the database.

    secret = read_neon_secret(request)    # of postgresql://anyone:svc_k_…@api.example.com/main
    database = request.named_database

The password is an API key or a session token. User, host and options are ignored.
"""

from urllib.parse import unquote

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.server.requests import Request

CONNECTION_STRING = b"neon-connection-string"
_SCHEMES = ("postgresql", "postgres")
_HINT = "It looks like this: postgresql://user:svc_k_…@host/database"


def read_neon_secret(request: Request) -> str:
    """The secret in the Authorization header or, without one, in the connection string. Raises ServiceError.

    Sets the database that the request names.
    """
    text = request.header(CONNECTION_STRING)
    password = ""
    if text is not None:
        password, database = read_connection_string(text)
        request.named_database = database or None
    if b"authorization" in request.headers:
        return secret_of(request)
    if not password:
        raise AccessError("unauthenticated", "The request has no API key.", hint=_HINT)
    return password


def read_connection_string(text: str) -> tuple[str, str]:
    """The password and the database of a connection string. Raises RequestError if it isn't one."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise RequestError("malformed_request", "Neon-Connection-String isn't a connection string.", hint=_HINT)
    for mark in ("?", "#"):
        if mark in rest:
            rest = rest.partition(mark)[0]
    authority, _, database = rest.partition("/")
    # A password may contain an `@`, and a `/`, `?` or `#` only as %2F, %3F or %23.
    password = authority.rpartition("@")[0].partition(":")[2]
    if "%" in rest:
        password, database = unquote(password), unquote(database)
    return password, database
