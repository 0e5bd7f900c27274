"""A request as the routes see it: headers by name, a bounded body, options from the query string.

    options = request.options(QueryOptions)
    await request.read_body(max_bytes, principal.tier)
    request.body

Every size limit is checked before the data is parsed.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import Outcome, RequestError, ServiceError
from plainsql_server.core.ids import is_request_id, new_request_id
from plainsql_server.data_plane.head_start import HeadStart
from plainsql_server.http.server.channel import ResponseChannel
from plainsql_server.http.server.responses import Response
from plainsql_server.http.server.valid_values import explained

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Decoded = TypeVar("Decoded")

# A large body may take longer than the body timeout, but must arrive at least at this rate.
_SLOWEST_BODY_BYTES_PER_S = 64 * 1024

# The ASGI extension through which the protocol passes the response channel.
CHANNEL = "plainsql.channel"


_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-|\Z)")


class ClientGone(Exception):
    """The client closed the connection before its request was complete, so there is no answer to send."""


class Request:
    """One HTTP request."""

    __slots__ = (
        "_body_timeout_s",
        "_receive",
        "began_s",
        "body",
        "channel",
        "has_permit",
        "head_start",
        "headers",
        "id",
        "method",
        "named_database",
        "path",
        "path_parameter",
        "query_string",
        "rate_headers",
        "refusal",
        "started_us",
        "streamed",
    )  # fmt: skip

    channel: ResponseChannel
    # The response that is being streamed, set once its first byte is sent.
    streamed: Response | None

    def __init__(
        self, method: str, path: str, query_string: bytes, headers: Mapping[bytes, bytes],
        *, body: bytes = b"", receive: Receive | None = None, body_timeout_s: float = 0.0,
    ) -> None:  # fmt: skip
        """A request whose body is already here, or arrives through `receive`. Header names are in lower case."""
        self.started_us = monotonic_us()
        self.method = method
        self.path = path
        self.headers = headers
        self.query_string = query_string
        # Complete once `read_body` has returned. The application calls it for routes that take a body.
        self.body = body
        # The value of the parameter in the path; '' if the route has none.
        self.path_parameter = ""
        # The database that comes with the credential, if that was read from a connection string.
        self.named_database: str | None = None
        self._receive = receive
        self._body_timeout_s = body_timeout_s
        # The rate limit headers of the response.
        self.rate_headers: Sequence[tuple[bytes, bytes]] = ()
        self.streamed = None
        # Set if the fast lane hands the request over: what it has begun, and whether it has taken a permit.
        self.head_start: HeadStart | None = None
        self.has_permit = False
        # When the fast lane began it, by the monotonic clock; None if that did not.
        self.began_s: float | None = None
        # Set if it failed in the fast lane: it waited for too long, or its connection broke while it was sent.
        self.refusal: ServiceError | None = None
        sent_id = headers.get(b"x-request-id")
        self.id = sent_id.decode() if sent_id and is_request_id(sent_id) else new_request_id()

    @classmethod
    def from_asgi(cls, scope: AsgiScope, receive: Receive, body_timeout_s: float) -> "Request":
        request = cls(
            scope["method"], scope["path"], scope["query_string"], dict(scope["headers"]),
            receive=receive, body_timeout_s=body_timeout_s,
        )  # fmt: skip
        request.channel = scope["extensions"][CHANNEL][CHANNEL]
        return request

    @property
    def was_sent(self) -> bool:
        """Whether the fast lane has sent its statements, or may have."""
        if self.refusal is not None:
            return self.refusal.outcome is Outcome.UNKNOWN
        return self.head_start is not None and self.head_start.sent is not None

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def trace_id(self) -> str | None:
        """The W3C trace id, if the caller sent a valid traceparent header."""
        sent = self.headers.get(b"traceparent")
        match = _TRACEPARENT.match(sent) if sent else None
        return match[1].decode() if match else None

    def content_type(self) -> str:
        """The media type without parameters, in lower case; '' if the client sent none."""
        return (self.header(b"content-type") or "").partition(";")[0].strip().lower()

    def charset(self) -> str:
        """The charset of the content type, in lower case; '' if there is none."""
        for parameter in (self.header(b"content-type") or "").lower().split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip() == "charset":
                return value.strip(' "')
        return ""

    def options(self, model: type[Decoded]) -> Decoded:
        """The query string as a model. Raises RequestError if it is invalid."""
        pairs = parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)
        sent = dict(pairs)
        if len(sent) < len(pairs):
            raise RequestError("invalid_option", "The query string sets an option more than once.")
        for name, text in sent.items():
            # `convert` would treat it as a missing option.
            if text.lower() == "null":
                raise RequestError("invalid_option", f"The query string is invalid: {name} cannot be null.")
        try:
            return msgspec.convert(sent, model, strict=False)
        except msgspec.ValidationError as error:
            raise RequestError("invalid_option", f"The query string is invalid: {explained(error, model)}.") from error

    def has_option(self, name: str) -> bool:
        """Whether the query string has an option, with or without a value."""
        return any(key == name for key, _ in parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True))

    async def read_body(self, max_bytes: int, tier: str) -> bool:
        """Reads the body to its end. Returns whether it had to wait for it: then authenticate the caller again.

        Raises RequestError if the body is too large, too slow or compressed, ClientGone if it is cut off.
        """
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise RequestError(
                "unsupported_content_encoding", "Compressed bodies aren't supported. Send the body uncompressed."
            )
        if self._receive is not None:
            await self._receive_body(self._receive, max_bytes, tier)
            return True
        if len(self.body) > max_bytes:
            raise _too_large(max_bytes, tier)
        return False

    async def _receive_body(self, receive: Receive, max_bytes: int, tier: str) -> None:
        if int(self.headers.get(b"content-length", b"0")) > max_bytes:
            raise _too_large(max_bytes, tier)
        try:
            self.body = await _received(receive, self._body_timeout_s, max_bytes, tier)
        except TimeoutError:
            raise RequestError("request_timeout", "The body did not arrive in time.") from None
        self._receive = None


async def _received(receive: Receive, timeout_s: float, max_bytes: int, tier: str) -> bytes:
    body = bytearray()
    more = True
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with asyncio.timeout_at(by_s) as limit:
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message["body"]
            more = message["more_body"]
            if len(body) > max_bytes:
                raise _too_large(max_bytes, tier)
            limit.reschedule(by_s + len(body) / _SLOWEST_BODY_BYTES_PER_S)
    return bytes(body)


def require_content_type(request: Request, wanted: bytes) -> None:
    """Raises RequestError unless the content type is `wanted` or missing, and the charset is UTF-8 or missing."""
    if request.headers.get(b"content-type") != wanted:
        _check_content_type(request, wanted.decode())


def _check_content_type(request: Request, wanted: str) -> None:
    content_type = request.content_type()
    if content_type not in ("", wanted) or request.charset() not in ("", "utf-8", "utf8"):
        raise RequestError(
            "unsupported_content_type",
            f"{request.path} accepts {wanted}, not {content_type}.",
            hint=f"Send the header Content-Type: {wanted}.",
        )


def text_of(body: bytes) -> str:
    """The body as text. Raises RequestError if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RequestError("malformed_request", f"The body isn't valid UTF-8 at byte {error.start}.") from error


def decode_json(body: bytes, decoder: "msgspec.json.Decoder[Decoded]") -> Decoded:
    """The body as a model. Raises RequestError if it is invalid."""
    if not body.isascii():
        text_of(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(
            "malformed_request", f"The JSON body is invalid: {explained(error, decoder.type)}."
        ) from error
    except msgspec.DecodeError as error:
        raise RequestError("malformed_request", f"The body isn't valid JSON: {error}.") from error
    except RecursionError as error:
        raise RequestError("malformed_request", "The JSON body is nested too deeply.") from error


def _too_large(max_bytes: int, tier: str) -> RequestError:
    return RequestError(
        "request_too_large", f"The request body exceeds the limit of {max_bytes} bytes (tier {tier!r})."
    )
