"""A request, as the routes see it: headers by name, a bounded body, options from the query string.

Owns reading from the client. Every limit is applied before what it guards is parsed.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError
from plainsql_server.core.ids import Kind, is_request_id, new_id

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Decoded = TypeVar("Decoded")


class ClientGone(Exception):
    """The client closed the connection before its request was complete; there is nobody to answer."""


class Request:
    """One HTTP request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.started_us = monotonic_us()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._query_string: bytes = scope["query_string"]
        self._receive = receive
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        sent_id = self.header(b"x-request-id") or ""
        self.id = sent_id if is_request_id(sent_id) else new_id(Kind.REQUEST)

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def content_type(self) -> str:
        """The media type without parameters, in lower case; '' if the client named none."""
        return (self.header(b"content-type") or "").partition(";")[0].strip().lower()

    def charset(self) -> str:
        """The character set that the content type names, in lower case; '' if it names none."""
        for parameter in (self.header(b"content-type") or "").lower().split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip() == "charset":
                return value.strip(' "')
        return ""

    def options(self, model: type[Decoded]) -> Decoded:
        """The query string as a model. Raises RequestError naming what does not fit."""
        pairs = parse_qsl(self._query_string.decode("latin-1"), keep_blank_values=True)
        try:
            return msgspec.convert(dict(pairs), model, strict=False)
        except msgspec.ValidationError as error:
            raise RequestError("invalid_option", f"The query string does not fit: {error}.") from error

    def has_option(self, name: str) -> bool:
        """Whether the query string names an option, with or without a value."""
        return any(key == name for key, _ in parse_qsl(self._query_string.decode("latin-1"), keep_blank_values=True))

    async def body(self, max_bytes: int, tier: str) -> bytes:
        """The whole body. Raises RequestError where it is too large, or compressed; ClientGone if it breaks off."""
        if self.header(b"content-encoding") not in (None, "identity"):
            raise RequestError("unsupported_content_encoding", "Send the body uncompressed.")
        if int(self.header(b"content-length") or 0) > max_bytes:
            raise _too_large(max_bytes, tier)
        message = await self._receive()
        # Appending to bytes would copy all that came before, each time.
        body = bytearray(message.get("body", b""))
        while message.get("more_body"):
            message = await self._receive()
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise _too_large(max_bytes, tier)
        if message["type"] == "http.disconnect":
            raise ClientGone
        return bytes(body)


def text_of(body: bytes) -> str:
    """The body as text. Raises RequestError where it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RequestError("malformed_request", f"The body is not UTF-8 at byte {error.start}.") from error


def decode_json(body: bytes, decoder: "msgspec.json.Decoder[Decoded]") -> Decoded:
    """The body as a model. Raises RequestError saying where it does not fit."""
    text_of(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError("malformed_request", f"The JSON body does not fit: {error}.") from error
    except msgspec.DecodeError as error:
        raise RequestError("malformed_request", f"The body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise RequestError("malformed_request", "The JSON body is nested too deeply.") from error


def _too_large(max_bytes: int, tier: str) -> RequestError:
    return RequestError("request_too_large", f"A request may have {max_bytes} bytes in the tier {tier!r}.")
