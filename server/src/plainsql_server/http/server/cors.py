"""OPTIONS, and cross-origin requests. Any page may call the API, because credentials are never cookies.

A response has CORS headers only if the request has an Origin header.
"""

from collections.abc import Sequence

from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header, Response

_READABLE = (
    b"X-Request-Id, RateLimit, RateLimit-Policy, Retry-After, Server-Timing, Idempotency-Replayed, ETag, Location"
)
_SENDABLE = (
    b"Authorization, Content-Type, Accept, X-Database, X-Request-Id, Idempotency-Key, If-None-Match, Cache-Control,"
    b" Last-Event-ID, traceparent, tracestate, Neon-Connection-String, Neon-Raw-Text-Output, Neon-Array-Mode,"
    b" Neon-Batch-Isolation-Level, Neon-Batch-Read-Only, Neon-Batch-Deferrable, Mcp-Protocol-Version, Mcp-Session-Id,"
    b" Mcp-Method, Mcp-Name"
)
# How long a browser may cache a preflight response. No browser keeps it for more than a day.
_REMEMBERED_S = 86_400

_EVERY_RESPONSE: Sequence[Header] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", _READABLE),
    (b"timing-allow-origin", b"*"),
)


def cors_headers(request: Request) -> Sequence[Header]:
    """The CORS headers for the response to a request."""
    return _EVERY_RESPONSE if b"origin" in request.headers else ()


def options_response(request: Request, methods: Sequence[str]) -> Response:
    """The response to OPTIONS, which may be a preflight, for a path that accepts these methods."""
    headers = [allow(methods)]
    if b"origin" in request.headers and b"access-control-request-method" in request.headers:
        headers += [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", _SENDABLE),
            (b"access-control-max-age", b"%d" % _REMEMBERED_S),
        ]
    return Response(200, b"", content_type=b"text/plain", headers=headers)


def allow(methods: Sequence[str]) -> Header:
    """The header with the methods that a path accepts."""
    return b"allow", ", ".join(["OPTIONS", *methods]).encode()
