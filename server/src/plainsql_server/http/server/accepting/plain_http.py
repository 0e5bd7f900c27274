"""The answer to plain HTTP that a client sends to a port for HTTPS: an error that says so.

Without it, the handshake would fail, and the client would see a closed connection. `tls.py` sends it.
"""

from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from plainsql_server.core.errors import RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.http.server.errors import error_response
from plainsql_server.http.server.responses import Header, rendered

_CAPITALS = range(ord("A"), ord("Z") + 1)
# Browsers must not get it without TLS (RFC 6797).
_ONLY_WITH_TLS = b"strict-transport-security"


def is_http(beginning: bytes) -> bool:
    """Whether a connection begins with a method of HTTP. TLS begins with a control code, the type of a record."""
    return beginning[0] in _CAPITALS


def answer(server_headers: Sequence[Header]) -> bytes:
    """The answer, after which the connection is closed."""
    error = RequestError(
        "https_required",
        "This port serves HTTPS, and the request was sent as plain HTTP.",
        hint="Use https:// in the URL. If the request had a key, create a new one: it was sent without encryption.",
    )
    response = error_response(error, new_id(Kind.REQUEST))
    assert isinstance(response.body, bytes)
    response.headers.append((b"content-type", response.content_type))
    response.headers.append((b"content-length", b"%d" % len(response.body)))
    headers = [header for header in server_headers if header[0] != _ONLY_WITH_TLS]
    return rendered(response, STATUS_LINE[response.status], headers, keep_alive=False, with_body=True)
