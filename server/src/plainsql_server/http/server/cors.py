"""Cross-origin requests: any page may call, because credentials are never cookies.

Owns the headers that browsers ask for. A response has them only where the request names its origin.
"""

from collections.abc import Sequence

from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header, Response

_READABLE = (
    b"X-Request-Id, RateLimit, RateLimit-Policy, Retry-After, Server-Timing, Idempotency-Replayed, ETag, Location"
)
_SENDABLE = (
    b"Authorization, Content-Type, Accept, X-Database, X-Request-Id, Idempotency-Key, If-None-Match, Cache-Control,"
    b" Last-Event-ID, traceparent, tracestate"
)
# How long a browser may remember the answer to its question; the longest that any of them does is a day.
_REMEMBERED_S = 86_400

_EVERY_RESPONSE: Sequence[Header] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", _READABLE),
    (b"timing-allow-origin", b"*"),
)


def cors_headers(request: Request) -> Sequence[Header]:
    """What a response to this request says to a browser."""
    return _EVERY_RESPONSE if b"origin" in request.headers else ()


def is_preflight(request: Request) -> bool:
    """Whether a browser asks beforehand if it may send a request."""
    return (
        request.method == "OPTIONS"
        and b"origin" in request.headers
        and b"access-control-request-method" in request.headers
    )


def preflight_response(methods: Sequence[str]) -> Response:
    """The answer to a preflight for a path that takes these methods."""
    headers = [
        (b"access-control-allow-methods", ", ".join(methods).encode()),
        (b"access-control-allow-headers", _SENDABLE),
        (b"access-control-max-age", b"%d" % _REMEMBERED_S),
    ]
    return Response(200, b"", content_type=b"text/plain", headers=headers)
