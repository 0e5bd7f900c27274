"""What the lane learns from requests that the ordinary path has read: the head that a client sends again and again.

learned = learned_heads.learn(data, request, b"application/json")    # None if it is not an ordinary one
"""

from dataclasses import dataclass
from weakref import WeakValueDictionary

from plainsql_server.core.credential import SECRET_LENGTH
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import is_request_id
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.app.stream_formats import STREAM_FORMATS
from plainsql_server.http.server.accept import preferred
from plainsql_server.http.server.cors import cors_headers
from plainsql_server.http.server.requests import Request, require_content_type
from plainsql_server.lane.known_head import DATABASE, LENGTH, REQUEST_ID, SECRET, TRACEPARENT, KnownHead

# A connection remembers its heads before it has authenticated, so only ordinary ones are worth it.
_MAX_HEAD_BYTES = 2 * 1024
# A request with one of these is read by the ordinary path each time.
_UNUSUAL = (b"transfer-encoding", b"upgrade", b"expect", b"content-encoding", b"idempotency-key")
# Headers that may differ from request to request.
_SPANS = {
    b"authorization": SECRET, b"content-length": LENGTH, b"traceparent": TRACEPARENT, b"x-database": DATABASE,
    b"x-request-id": REQUEST_ID,
}  # fmt: skip


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LearnedHead:
    """A known head, and what the ordinary path makes of its headers. Callers whose heads are equal share it."""

    known: KnownHead
    # All but those that may differ, which belong to a request.
    headers: dict[bytes, bytes]
    # The lines that every answer has because of the request's Origin header.
    cors: bytes


class LearnedHeads:
    """The heads that the clients of a process send again and again. Connections whose heads are equal share them."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[tuple[object, ...], LearnedHead] = WeakValueDictionary()

    def learn(self, data: bytes, request: Request, content_type: bytes) -> LearnedHead | None:
        """The head of a request; see `learn_head`."""
        learned = learn_head(data, request, content_type)
        return None if learned is None else self._by_key.setdefault(learned.known.key, learned)


def learn_head(data: bytes, request: Request, content_type: bytes) -> LearnedHead | None:
    """The head of a request whose bytes were exactly `data`, or None if the lane has no use for it.

    `content_type` is what its route takes.
    """
    headers = request.headers
    # A request with a query string, or a path that is written in another way, has another line.
    line = f"POST {request.path} HTTP/1.1\r\n".encode()
    if not data.startswith(line) or any(name in headers for name in _UNUSUAL):
        return None
    if data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES) < 0:
        return None
    if preferred(headers.get(b"accept"), tuple(STREAM_FORMATS), must=False) is not None:
        return None
    known = _known_head(data, request)
    if known is None:
        return None
    try:
        require_content_type(request, content_type)
        if not _reads_the_caller(known, data, request):
            return None
    except ServiceError:
        return None
    cors = b"".join([b"%b: %b\r\n" % header for header in cors_headers(request)])
    return LearnedHead(known, {name: headers[name] for name in headers if name not in _SPANS}, cors)


def _reads_the_caller(known: KnownHead, data: bytes, request: Request) -> bool:
    """Whether a head that matches its data has found what the ordinary path finds.

    Raises ServiceError if that finds no secret.
    """
    at, database = known.database_at, None
    if at >= 0:
        database = data[at : at + known.database_size].decode()
    secret = data[known.secret_at : known.secret_at + SECRET_LENGTH].decode()
    return (secret, database) == (secret_of(request), request.header(b"x-database"))


def _known_head(data: bytes, request: Request) -> KnownHead | None:
    """Cuts the head at the values that may differ. The parser has read these bytes, so they are lines of a head."""
    parts, kinds = [b""], []
    for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        kind = _SPANS.get(name.lower())
        if kind is None or not _may_differ(kind, value):
            parts[-1] += line + b"\r\n"
            continue
        if kind in kinds or not value.startswith(b" ") or value[1:] != request.headers.get(name.lower()):
            return None
        parts[-1] += name + colon + b" " + _scheme(kind, value[1:])
        parts.append(b"\r\n")
        kinds.append(kind)
    parts[-1] += b"\r\n"
    if LENGTH not in kinds or SECRET not in kinds:
        return None
    known = KnownHead(tuple(parts), tuple(kinds))
    is_this = known.match(data) == KnownHead.COMPLETE and known.body_at + known.body_size == len(data)
    return known if is_this else None


def _scheme(kind: int, value: bytes) -> bytes:
    """What stands before the secret."""
    scheme, space, _ = value.partition(b" ")
    return scheme + space if kind == SECRET else b""


def _may_differ(kind: int, value: bytes) -> bool:
    """Whether a value is of the form that the lane reads. Another one must be the same each time."""
    return kind != REQUEST_ID or is_request_id(value.strip())
