"""The head of a request, gathered from the parser's callbacks, and the choice of its way.

Owns the limit on a head and the rule of the short way. The parser calls straight into this module, past the
connection's own class, because each header is a call and these are compiled (see `kernel.py`).
"""

from urllib.parse import unquote

import httptools

from plainsql_server.http.server.requests import Request

# Address and headers together; nobody needs more, and they are held before anybody is authenticated.
MAX_HEAD_BYTES = 64 * 1024
# A body this small is held whole before its sender is authenticated.
MAX_SHORT_BODY_BYTES = 64 * 1024


class Head:
    """The address and the headers of the request that is being read; one for each connection."""

    __slots__ = ("headers", "size_bytes", "url")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets the request before."""
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.size_bytes = 0

    def add_url(self, piece: bytes) -> None:
        self._count(len(piece))
        self.url += piece

    def add_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        self.headers[name.lower()] = value

    def is_short(self) -> bool:
        """Whether the request can be handed over whole."""
        headers = self.headers
        return (
            b"transfer-encoding" not in headers
            and b"upgrade" not in headers
            and b"expect" not in headers
            and self.url.startswith(b"/")
            and int(headers.get(b"content-length", b"0")) <= MAX_SHORT_BODY_BYTES
        )

    def request(self, method: bytes, body: bytes) -> Request:
        """The request, whole."""
        raw_path, _, query_string = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        return Request(
            method.decode("ascii"), unquote(path) if "%" in path else path, query_string, self.headers, body=body
        )

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self.size_bytes > MAX_HEAD_BYTES:
            # Ends the parsing; uvicorn answers 400 and closes.
            raise httptools.HttpParserError
