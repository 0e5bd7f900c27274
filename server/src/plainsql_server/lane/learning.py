"""What the lane learns from requests that the ordinary path has read: the head that a client sends again and again.

learned = learned_heads.learn(data, request, b"application/json", secret_of)    # None if it is not an ordinary one
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes
from weakref import WeakValueDictionary

from plainsql_server.core.credential import KEY_PREFIX, SECRET_LENGTH
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import is_request_id
from plainsql_server.http.app.routes import ReadSecret
from plainsql_server.http.app.stream_formats import STREAM_FORMATS
from plainsql_server.http.data.neon_connection import CONNECTION_STRING, read_connection_string
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
# They belong to a request, with the connection string, of which parts may differ.
_OF_A_REQUEST = frozenset([*_SPANS, CONNECTION_STRING])
# Each is in the place of a secret and of a database, to prove that these are read from there.
_PROBES = tuple((f"{KEY_PREFIX}{digit * (SECRET_LENGTH - len(KEY_PREFIX))}", f"probe-{digit}") for digit in "01")

# A secret where none belongs, such as in the user name of a connection string.
_is_secret_in = re.compile(rb"svc_[ks]_[0-9A-Za-z]{%d}" % (SECRET_LENGTH - len(KEY_PREFIX))).search

# What may differ in a value, from where to where.
_Span = tuple[int, int, int]


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

    def learn(
        self, data: bytes, request: Request, content_type: bytes | None, read_secret: ReadSecret
    ) -> LearnedHead | None:
        """The head of a request; see `learn_head`."""
        learned = learn_head(data, request, content_type, read_secret)
        return None if learned is None else self._by_key.setdefault(learned.known.key, learned)


def learn_head(
    data: bytes, request: Request, content_type: bytes | None, read_secret: ReadSecret
) -> LearnedHead | None:
    """The head of a request whose bytes were exactly `data`, or None if the lane has no use for it.

    `content_type` is what its route takes, None for any, and `read_secret` how it finds the secret.
    """
    headers = request.headers
    # A request with a query string, or a path that is written in another way, has another line.
    line = f"POST {request.path} HTTP/1.1\r\n".encode()
    if not data.startswith(line) or any(name in headers for name in _UNUSUAL):
        return None
    if data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES) < 0:
        return None
    if b"authorization" in headers and CONNECTION_STRING in headers:
        # One has the secret, and the other one the database.
        return None
    if preferred(headers.get(b"accept"), tuple(STREAM_FORMATS), must=False) is not None:
        return None
    known = _known_head(data, request)
    if known is None:
        return None
    try:
        if content_type is not None:
            require_content_type(request, content_type)
        if not _reads_the_caller(known, data, request, read_secret):
            return None
    except ServiceError:
        return None
    cors = b"".join([b"%b: %b\r\n" % header for header in cors_headers(request)])
    return LearnedHead(known, {name: headers[name] for name in headers if name not in _OF_A_REQUEST}, cors)


def _reads_the_caller(known: KnownHead, data: bytes, request: Request, read_secret: ReadSecret) -> bool:
    """Whether a head that matches its data has found what the ordinary path finds.

    Raises ServiceError if that finds no secret.
    """
    at, database = known.database_at, None
    if at >= 0:
        database = data[at : at + known.database_size].decode()
    secret = data[known.secret_at : known.secret_at + SECRET_LENGTH].decode()
    read = read_secret(request)
    return (secret, database) == (read, request.named_database or request.header(b"x-database"))


def _known_head(data: bytes, request: Request) -> KnownHead | None:
    """Cuts the head at the values that may differ. The parser has read these bytes, so they are lines of a head."""
    parts, kinds = [b""], []
    for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        spans, at = _spans_of(name.lower(), value), 0
        if spans and (not value.startswith(b" ") or value[1:] != request.headers.get(name.lower())):
            return None
        if not spans and name.lower() == CONNECTION_STRING:
            # It may contain a secret, which is not kept with a head.
            return None
        parts[-1] += name + colon
        for kind, start, end in spans:
            if kind in kinds:
                return None
            parts[-1] += value[at:start]
            parts.append(b"")
            kinds.append(kind)
            at = end
        parts[-1] += value[at:] + b"\r\n"
    parts[-1] += b"\r\n"
    if LENGTH not in kinds or SECRET not in kinds:
        return None
    if any(_is_secret_in(unquote_to_bytes(part)) for part in parts):
        # What is the same each time is kept, and a secret must not be.
        return None
    known = KnownHead(tuple(parts), tuple(kinds))
    is_this = known.match(data) == KnownHead.COMPLETE and known.body_at + known.body_size == len(data)
    return known if is_this else None


def _spans_of(name: bytes, value: bytes) -> Sequence[_Span]:
    """What may differ in the value of a header, which begins with a blank; empty if it must be the same each time."""
    if name == CONNECTION_STRING:
        return _spans_of_connection_string(value)
    kind = _SPANS.get(name)
    # The ordinary path ignores an id of another form.
    if kind is None or (kind == REQUEST_ID and not is_request_id(value.strip())):
        return ()
    return [(kind, value.find(b" ", 1) + 1 if kind == SECRET else 1, len(value))]


def _spans_of_connection_string(value: bytes) -> Sequence[_Span]:
    """Where the secret and the database are; empty if they aren't where the ordinary path would always find them."""
    try:
        secret, database = read_connection_string(value[1:].decode("latin-1"))
    except ServiceError:
        return ()
    at = value.find(secret.encode())
    if len(secret) != SECRET_LENGTH or at < 0:
        return ()
    spans = [(SECRET, at, at + SECRET_LENGTH)]
    if database:
        at = value.find(b"/", at + SECRET_LENGTH) + 1
        spans.append((DATABASE, at, at + len(database)))
    # Neither can contain a character that has a meaning in a connection string, so if others in their places are read,
    # all are.
    return spans if all(_is_read(value, spans, *probe) for probe in _PROBES) else ()


def _is_read(value: bytes, spans: Sequence[_Span], secret: str, database: str) -> bool:
    """Whether a connection string with these in the places of its spans is read as these."""
    changed = bytearray(value)
    texts = (secret, database)[: len(spans)]
    for (_, start, end), text in zip(reversed(spans), reversed(texts), strict=True):
        changed[start:end] = text.encode()
    return read_connection_string(changed[1:].decode("latin-1")) == (secret, database if len(spans) > 1 else "")
