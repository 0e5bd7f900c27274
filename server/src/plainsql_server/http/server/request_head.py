"""The head of a request, collected from the parser's callbacks.

It limits the size of the head and decides whether a request takes the fast path. The parser calls this module directly,
not through the connection's class, because that would be one more call for each header.
"""

from urllib.parse import unquote

import httptools

from plainsql_server.http.server.requests import Request

# The URL and headers together. They are held in memory before the caller is authenticated. The parser passes a header
# on when it is complete, so the connection counts what arrives of one that never ends.
MAX_HEAD_BYTES = 64 * 1024
# A body up to this size is held in memory before the caller is authenticated.
MAX_SHORT_BODY_BYTES = 64 * 1024

# What of a request is arriving. Plain integers, because they are set and compared for each request.
BETWEEN_REQUESTS, IN_HEAD, IN_BODY = range(3)


class Head:
    """The URL and headers of the request that is being read. Each connection has one."""

    __slots__ = ("begun", "headers", "progress", "size_bytes", "url")

    def __init__(self) -> None:
        # How many requests the parser has begun to read on this connection.
        self.begun = -1
        self.begin()
        self.progress = BETWEEN_REQUESTS

    def begin(self) -> None:
        """Clears the previous request."""
        self.begun += 1
        self.progress = IN_HEAD
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.size_bytes = 0

    def add_url(self, chunk: bytes) -> None:
        self._count(len(chunk))
        self.url += chunk

    def add_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        name = name.lower()
        if name == b"accept" and name in self.headers:
            value = self.headers[name] + b", " + value
        self.headers[name] = value

    def is_short(self) -> bool:
        """Whether the request can take the fast path."""
        headers = self.headers
        return (
            b"transfer-encoding" not in headers
            and b"upgrade" not in headers
            and b"expect" not in headers
            and self.url.startswith(b"/")
            and int(headers.get(b"content-length", b"0")) <= MAX_SHORT_BODY_BYTES
        )

    def request(self, method: bytes, body: bytes) -> Request:
        """The complete request."""
        raw_path, _, query_string = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        return Request(
            method.decode("ascii"), unquote(path) if "%" in path else path, query_string, self.headers, body=body
        )

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self.size_bytes > MAX_HEAD_BYTES:
            # This ends parsing. uvicorn then answers 400 and closes the connection.
            raise httptools.HttpParserError
