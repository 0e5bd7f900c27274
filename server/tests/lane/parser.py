"""The parser of the ordinary path, for tests of what the lane makes of the same bytes."""

import httptools

from plainsql_server.http.server.request_head import Head
from plainsql_server.http.server.requests import Request


class Parser:
    """The parser of the ordinary path, with what it collects."""

    def __init__(self) -> None:
        head = Head()
        self.on_message_begin, self.on_url, self.on_header = head.begin, head.add_url, head.add_header
        self._head, self._body = head, b""
        self._requests: list[Request] = []

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._requests.append(self._head.request(b"POST", self._body))

    def read(self, data: bytes) -> Request:
        """The only request in the data."""
        httptools.HttpRequestParser(self).feed_data(data)
        (request,) = self._requests
        return request
