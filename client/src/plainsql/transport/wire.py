"""HTTP/1.1 without sockets: turns requests into bytes and bytes into responses, using h11.

Also defines the effects (`Send`, `Sleep`) that the protocol asks the driver to perform, and the errors they raise. The
classes here are not dataclasses, because creating those would slow down the start of every command.
"""

from collections.abc import Coroutine, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

import h11

from plainsql.settings import Address

T = TypeVar("T")

# The largest response head accepted. The service's heads have a few hundred bytes.
_HEAD_BYTES_MAX = 64 * 1024


class Request(NamedTuple):
    """A request to one plane. A retry sends the same `body`, byte for byte."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    to_control: bool = False

    @property
    def idempotency_key(self) -> str | None:
        return next((value for name, value in self.headers if name == "Idempotency-Key"), None)


class Source(Protocol):
    """A response body that is still being received."""

    def read(self) -> Coroutine[Any, Any, bytes]: ...

    def close(self) -> None: ...


class Response:
    """A response. A streamed response has `source` instead of `body`.

    `read_only` is True if the request was read-only, so nothing can have been written.
    """

    __slots__ = ("body", "headers", "read_only", "source", "status")

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.body = b""
        self.source: Source | None = None
        self.read_only = False

    def is_stream(self) -> bool:
        """Whether this is a stream of rows, not an error."""
        kind = self.headers.get("content-type", "")
        return self.status == 200 and kind.startswith(("application/x-ndjson", "text/csv"))


class Send(NamedTuple):
    """Effect: send the request and return the response, or throw NotSent or Lost."""

    request: Request
    wait_s: float
    as_stream: bool = False


class Sleep(NamedTuple):
    """Effect: wait."""

    seconds: float


Steps = Generator[Send | Sleep, Any, T]


class NotSent(Exception):
    """The request cannot have reached the service. If `is_final`, a retry won't help.

    With `is_untrusted`, the reason is the service's certificate.
    """

    def __init__(self, message: str, *, is_final: bool = False, is_untrusted: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
        self.is_untrusted = is_untrusted


class Lost(Exception):
    """The request was sent, at least in part, but no complete response arrived."""


class Wire:
    """The HTTP state of one connection. Feed it received bytes, then ask for the head and the body."""

    __slots__ = ("_host", "_state")

    def __init__(self, host: str) -> None:
        self._host = host
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)

    def bytes_of(self, request: Request, authorization: str) -> bytes:
        """The bytes to send for a request."""
        headers = [("Host", self._host), ("Authorization", authorization), *request.headers]
        if request.body or request.method in ("POST", "PATCH"):
            headers.append(("Content-Length", str(len(request.body))))
        head = h11.Request(method=request.method, target=request.target, headers=headers)
        written = self._state.send(head)
        if request.body:
            written += self._state.send(h11.Data(data=request.body))
        return written + self._state.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> None:
        """Takes received bytes; empty bytes mean the end of the connection."""
        self._state.receive_data(data)

    def head(self) -> Response | None:
        """The status and the headers, or None if more bytes are needed."""
        event = self._next()
        while isinstance(event, h11.InformationalResponse):
            event = self._next()
        if event is None:
            return None
        if not isinstance(event, h11.Response):
            raise Lost("The service closed the connection without a response.")
        return Response(event.status_code, {name.decode(): value.decode("latin-1") for name, value in event.headers})

    def chunk(self) -> bytes | None:
        """The next bytes of the body, empty at its end, or None if more bytes are needed."""
        event = self._next()
        if event is None:
            return None
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise Lost("The connection ended in the middle of a response.")

    def may_be_used_again(self) -> bool:
        """Whether the exchange is complete and the connection stays open. If so, prepares it for the next one."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True

    def _next(self) -> Any:
        try:
            event = self._state.next_event()
        except h11.RemoteProtocolError as error:
            raise Lost(f"The response is incomplete or isn't HTTP: {error}") from error
        return None if event is h11.NEED_DATA else event


class AddressBook:
    """Which address serves a request. The control plane's is configured, or learned from the data plane."""

    def __init__(self, data: Address, control: Address | None) -> None:
        self.data = data
        self.control = control

    def address_for(self, request: Request) -> Address:
        if request.to_control:
            assert self.control is not None
            return self.control
        return self.data
