"""A response before it is sent, and its HTTP/1.1 encoding.

return json_response(200, content)
"""

from typing import Any

import msgspec

from plainsql_server.core.errors import ServiceError
from plainsql_server.http.server.long_body import Body

JSON = b"application/json"

Header = tuple[bytes, bytes]
Content = msgspec.Struct | dict[str, Any]


class Response:
    """The status, body and headers of an answer."""

    __slots__ = (
        "body", "command", "content_type", "error_code", "exec_us", "failure", "headers", "queue_us", "row_count",
        "sent_bytes", "status", "stream",
    )  # fmt: skip

    def __init__(
        self,
        status: int,
        body: Body,
        headers: list[Header] | None = None,
        *,
        content_type: bytes = JSON,
        queue_us: int = 0,
        exec_us: int = 0,
        command: str | None = None,
        row_count: int = 0,
        error_code: str | None = None,
        stream: str | None = None,
    ) -> None:
        self.status = status
        self.body: Body = body
        self.content_type = content_type
        self.headers: list[Header] = [] if headers is None else headers
        # For the log. It never contains customer data.
        self.queue_us = queue_us
        self.exec_us = exec_us
        self.command = command
        self.row_count = row_count
        self.error_code = error_code
        # For streams, which are already sent when the response is returned: the format, the size, and the error.
        self.stream = stream
        self.sent_bytes = 0
        self.failure: ServiceError | None = None


def json_response(status: int, content: Content, headers: list[Header] | None = None) -> Response:
    return Response(status, msgspec.json.encode(content), headers)


def rendered(
    response: Response, status_line: bytes, server_headers: list[Header], *, keep_alive: bool, with_body: bool
) -> bytes:
    """The bytes of an HTTP/1.1 response, without its body if that is long."""
    lines = [status_line]
    for name, value in server_headers:
        lines += (name, b": ", value, b"\r\n")
    for name, value in response.headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    if with_body and isinstance(response.body, bytes):
        lines.append(response.body)
    return b"".join(lines)
