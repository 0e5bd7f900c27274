"""What a connection and the application know of the fast lane, which is in the package `lane/`, if it is compiled."""

from collections.abc import Callable
from typing import Protocol

from plainsql_server.http.server.request_head import Head
from plainsql_server.http.server.requests import Request


class Track(Protocol):
    """The lane's side of one connection."""

    idle_since_s: float
    """When the lane sent its last answer, by the monotonic clock; 0 if it sent none."""
    is_paused: bool
    """Set while the client does not read its answers."""

    @property
    def is_busy(self) -> bool:
        """Whether the lane is answering a request."""

    def data_received(self, data: bytes, /) -> None:
        """Takes what the client sent: the lane answers it, or passes it to the parser."""

    def learn(self, request: Request) -> None:
        """Looks at a request that the parser has read, so that the lane knows the next one like it."""

    def request_answered(self) -> None:
        """Counts a request that the parser has read and the ordinary path has answered."""

    def leave(self) -> None:
        """Hands the request that the lane is answering over to the ordinary path: the server stops."""

    def close(self) -> None:
        """Does the same, and drops all references to the connection, which is lost."""


class Lane(Protocol):
    """The fast lane of a process."""

    def track(self, connection: object, head: Head, parse: Callable[[bytes], None]) -> Track:
        """The lane's side of a new connection. `parse` feeds the parser."""

    def close(self) -> None:
        """Reports what is not reported yet. No request may be under way."""
