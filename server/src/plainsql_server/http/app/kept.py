"""Content that does not change while the process runs, with its ETag."""

import hashlib
from collections.abc import Sequence

from plainsql_server.http.app.etags import is_known
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header, Response

# A new version of the service changes it, so caches must revalidate their copy.
_ASK_AGAIN: Header = (b"cache-control", b"no-cache")


class Kept:
    """A body, its content type and its headers."""

    def __init__(self, body: bytes, content_type: bytes, headers: Sequence[Header] = ()) -> None:
        self._body = body
        self._content_type = content_type
        self._version = hashlib.sha256(body).hexdigest()[:32]
        self._headers = (*headers, _ASK_AGAIN, (b"etag", f'"{self._version}"'.encode()))

    def response(self, request: Request) -> Response:
        """The response to a request: 304 if it has this version."""
        if is_known(request, self._version):
            return Response(304, b"", headers=[*self._headers])
        return Response(200, self._body, content_type=self._content_type, headers=[*self._headers])
