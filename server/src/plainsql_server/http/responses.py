"""A response, before it is sent.

Owns the bytes of JSON answers and the headers that every response has. Refuses to decide a status.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from plainsql_server.core.errors import ServiceError

JSON = b"application/json"

Header = tuple[bytes, bytes]
Content = msgspec.Struct | dict[str, Any]


@dataclass(slots=True)
class Response:
    """Status, body and headers of one answer."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: list[Header] = field(default_factory=list)
    # What the log says about it; never the customer's data.
    queue_us: int = 0
    exec_us: int = 0
    command: str | None = None
    row_count: int = 0
    error_code: str | None = None
    # Of a stream, which was sent when its response is returned: its form, its bytes, and why it failed.
    stream: str | None = None
    sent_bytes: int = 0
    failure: ServiceError | None = None


def json_response(status: int, content: Content, headers: list[Header] | None = None) -> Response:
    return Response(status, msgspec.json.encode(content), headers=headers or [])
