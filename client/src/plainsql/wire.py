"""HTTP/1.1 without a socket: requests to bytes, bytes to responses, and what may happen to one on the way.

Owns the state of one connection, which h11 keeps, and the effects that the protocol asks its driver for. Refuses to
read, write or wait: `driver.py` and the sockets do that. Nothing here is a dataclass: a command waits for the making
of each.
"""

from collections.abc import Coroutine, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

import h11

from plainsql.settings import Address

T = TypeVar("T")

# Room for the head of an answer; the service's have some hundred bytes.
_HEAD_BYTES_MAX = 64 * 1024


class Request(NamedTuple):
    """A request to one plane. `body` is what is sent again, byte for byte, where it is."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    to_control: bool = False

    @property
    def idempotency_key(self) -> str | None:
        return next((value for name, value in self.headers if name == "Idempotency-Key"), None)


class Source(Protocol):
    """An answer's body that is still on its way."""

    def read(self) -> Coroutine[Any, Any, bytes]: ...

    def close(self) -> None: ...


class Response:
    """An answer. `source` is there instead of `body` if it was asked for as a stream and is one.

    `read_only` says that it was asked for read-only, so that nothing can have been written.
    """

    __slots__ = ("body", "headers", "read_only", "source", "status")

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.body = b""
        self.source: Source | None = None
        self.read_only = False

    def is_stream(self) -> bool:
        """Whether this is rows as they come, and not an error that came before them."""
        kind = self.headers.get("content-type", "")
        return self.status == 200 and kind.startswith(("application/x-ndjson", "text/csv"))


class Send(NamedTuple):
    """Effect: send this and hand back the response, or throw NotSent or Lost."""

    request: Request
    wait_s: float
    as_stream: bool = False


class Sleep(NamedTuple):
    """Effect: wait."""

    seconds: float


Steps = Generator[Send | Sleep, Any, T]


class NotSent(Exception):
    """The request cannot have reached the service. If `is_final`, another attempt will not either."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Lost(Exception):
    """The request was sent, at least in part, and no whole answer came."""


class Wire:
    """One connection's state. Feed it what came; ask it what that means."""

    __slots__ = ("_host", "_state")

    def __init__(self, host: str) -> None:
        self._host = host
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)

    def bytes_of(self, request: Request, authorization: str) -> bytes:
        """What to write to the socket for a request."""
        headers = [("Host", self._host), ("Authorization", authorization), *request.headers]
        if request.body or request.method in ("POST", "PATCH"):
            headers.append(("Content-Length", str(len(request.body))))
        head = h11.Request(method=request.method, target=request.target, headers=headers)
        written = self._state.send(head)
        if request.body:
            written += self._state.send(h11.Data(data=request.body))
        return written + self._state.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> None:
        """Takes what came from the socket; empty for its end."""
        self._state.receive_data(data)

    def head(self) -> Response | None:
        """The status and the headers, or None if more bytes are needed."""
        event = self._next()
        while isinstance(event, h11.InformationalResponse):
            event = self._next()
        if event is None:
            return None
        if not isinstance(event, h11.Response):
            raise Lost("The service closed the connection without an answer.")
        return Response(event.status_code, {name.decode(): value.decode("latin-1") for name, value in event.headers})

    def piece(self) -> bytes | None:
        """The next bytes of the body, empty at its end, or None if more bytes are needed."""
        event = self._next()
        if event is None:
            return None
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise Lost("The connection ended within an answer.")

    def may_be_used_again(self) -> bool:
        """Whether the exchange is over and the connection stays; if so, it is ready for the next one."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True

    def _next(self) -> Any:
        try:
            event = self._state.next_event()
        except h11.RemoteProtocolError as error:
            raise Lost(f"The answer broke off, or is no HTTP: {error}") from error
        return None if event is h11.NEED_DATA else event


class AddressBook:
    """Which address serves a request. The control plane's is known, or is told by the data plane."""

    def __init__(self, data: Address, control: Address | None) -> None:
        self.data = data
        self.control = control

    def address_for(self, request: Request) -> Address:
        if request.to_control:
            assert self.control is not None
            return self.control
        return self.data
