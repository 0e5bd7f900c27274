"""The response channel: the connection that the answer to one request goes to, and why the request was cancelled.

    channel.cancel(CancelReason.SHUTDOWN)

The protocol makes one for each request and puts it into `request.channel`.
"""

import asyncio
from enum import Enum, auto
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl


class CancelReason(Enum):
    """Why a request was cancelled before it was answered."""

    CLIENT_GONE = auto()
    SHUTDOWN = auto()
    ACCESS_ENDED = auto()
    """The credential of a stream was revoked, or has expired."""


class Cycle(Protocol):
    """A request that is being answered, as uvicorn represents it."""

    keep_alive: bool
    response_complete: bool


class ClientConnection(Protocol):
    """The connection of a client: uvicorn's protocol."""

    transport: asyncio.Transport
    flow: FlowControl
    server_state: Any

    def key_accepted(self) -> None:
        """Called when the caller is known. From then on, what the client has sent is no stranger's."""

    def on_response_complete(self) -> None:
        """Continues with the next request."""

    def note_unsent(self, unsent_bytes: int) -> None:
        """Takes how much of a long body has not been written yet; 0 at its end, or if it is given up."""


class ResponseChannel:
    """Where the answer to one request goes."""

    __slots__ = ("cancel_reason", "connection", "cycle", "is_chunked", "is_sending", "task")

    def __init__(self, connection: ClientConnection, cycle: Cycle, is_chunked: bool) -> None:
        self.connection = connection
        self.cycle = cycle
        # Whether the answer may be chunked: not for HTTP/1.0.
        self.is_chunked = is_chunked
        # Whether the answer is complete and being sent.
        self.is_sending = False
        # The task that answers the request.
        self.task: asyncio.Task[None] | None = None
        # The first reason for which it was cancelled. None if it was not, or by the server itself at its end.
        self.cancel_reason: CancelReason | None = None

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the request, unless it has ended. A shutdown does not cut an answer that is being sent."""
        if self.is_sending and reason is CancelReason.SHUTDOWN:
            return
        if self.task is not None and not self.task.done():
            if self.cancel_reason is None:
                self.cancel_reason = reason
            self.task.cancel()
