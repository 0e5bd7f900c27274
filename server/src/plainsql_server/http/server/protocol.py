"""The HTTP/1.1 connection: uvicorn's protocol, with a short way for small, whole requests.

Owns the difference to uvicorn: a request with a small body of known length is handed over when it is
complete, as one object, and its answer is written at once, without ASGI's messages in between; measured,
that is what a query's HTTP costs most. Everything else (large or chunked bodies, pipelining) takes
uvicorn's way. On both ways a client that goes away has its request cancelled, and one that does not read its
answer is dropped. Parsing, keep-alive, flow
control and shutdown are uvicorn's. Refuses to know routes.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from plainsql_server.core.errors import RequestError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.http.server.connections import Connections
from plainsql_server.http.server.errors import error_response
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.request_head import Head
from plainsql_server.http.server.requests import WAY, Request
from plainsql_server.http.server.responses import Response, rendered
from plainsql_server.http.server.sink import reset

# How long a running request may go on after the server was told to stop; then its caller is told so.
LAST_ANSWERS_AFTER_S = 2.0
# What a request is cancelled with then; every other cancellation means that the client went away.
SHUTDOWN = "shutdown"

# How much of an answer must be read each time that a client's timeouts limit has passed: this share of it.
_READ_SHARE = 8
_PIECE_BYTES = 256 * 1024
# A stream's sink watches its own client, and logs what it does; it comes first.
_SINK_FIRST_S = 0.5


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long a client may keep us waiting: for a request's body, and for the reading of an answer."""

    body_s: float
    stall_s: float


class Responder(Protocol):
    """What answers requests: the application of a plane."""

    readiness: Readiness
    timeouts: ClientTimeouts
    connections: Connections

    async def respond(self, request: Request) -> Response | None:
        """The answer, or None where nobody is left to read one."""


class _ShortCycle:
    """A request on the short way, with the names that uvicorn's protocol knows a cycle by."""

    __slots__ = ("body", "chunked", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self, keep_alive: bool, chunked: bool) -> None:
        self.body = bytearray()
        self.chunked = chunked
        self.more_body = True
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NEVER_AWAITED


class _Unwatched:
    """Stands for the event that uvicorn sets when a body arrives; on the short way nobody waits for it."""

    def set(self) -> None:
        return


_NEVER_AWAITED = _Unwatched()


class ShortWayProtocol(HttpToolsProtocol):
    """One client's connection."""

    _short: _ShortCycle | None = None
    _task: "asyncio.Task[None] | None" = None
    _stall_timer: asyncio.TimerHandle | None = None
    # Since when nothing is under way on the connection; endless while something is.
    _idle_since_s = math.inf
    _idle_timer: asyncio.TimerHandle | None = None

    # For `http/server/connections.py`: since when the first request is awaited, or the next one has begun to come.
    address = ""
    awaiting_since_s: float | None = None
    has_begun = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._head = head = Head()
        # The parser asks for its callbacks once, when it is made, and finds these before the class's.
        vars(self).update(on_message_begin=head.begin, on_url=head.add_url, on_header=head.add_header)
        super().__init__(*arguments, **named)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.awaiting_since_s = self.loop.time()
        responder: Responder = self.app
        responder.connections.admit(self)

    @property
    def is_answering(self) -> bool:
        """Whether a request is whole, or its body is watched over by who reads it, and it is not answered yet."""
        return self._short is None and self._owes_an_answer()

    def on_headers_complete(self) -> None:
        if not self._owes_an_answer() and self._head.is_short():
            newer = self.parser.get_http_version() != "1.0"
            self._short = _ShortCycle(newer and self.parser.should_keep_alive(), newer)
            self.cycle = self._short  # type: ignore[assignment]
            return
        self._short = None
        self._awaits_nothing()
        self._begin_uvicorns_way()

    def on_body(self, body: bytes) -> None:
        if self._short is None:
            super().on_body(body)
        else:
            self._short.body += body

    def on_message_complete(self) -> None:
        if (short := self._short) is None:
            super().on_message_complete()
            return
        self._short = None
        self._awaits_nothing()
        short.more_body = False
        request = self._head.request(self.parser.get_method(), bytes(short.body))
        request.way = (self, short, short.chunked)
        self._run(self._answer(short, request))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        responder: Responder = self.app
        responder.connections.release(self)
        self._stop_watching()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._task is not None:
            self._task.cancel()

    def shutdown(self) -> None:
        super().shutdown()
        if self._task is not None:
            self.loop.call_later(LAST_ANSWERS_AFTER_S, self._task.cancel, SHUTDOWN)

    def pause_writing(self) -> None:
        super().pause_writing()
        unread_bytes = self.transport.get_write_buffer_size()
        self._watch_reading(unread_bytes, unread_bytes // _READ_SHARE)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def on_response_complete(self) -> None:
        """Goes on with the next request, as uvicorn's does, but for the timer: see `_look_at_idleness`."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._close_in_time()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._awaits_nothing()
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_at_idleness)

    def _unset_keepalive_if_required(self) -> None:
        """uvicorn's word for: something came from the client."""
        self._idle_since_s = math.inf
        if not self.has_begun:
            self.has_begun = True
            self.awaiting_since_s = self.loop.time()

    def _awaits_nothing(self) -> None:
        self.has_begun = False
        self.awaiting_since_s = None

    def _look_at_idleness(self) -> None:
        """Closes a connection that nobody used for so long. One timer goes on for a connection's whole life, because
        setting one with each answer and cancelling it with each request shows.
        """
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            self._idle_timer = None
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_later(min(left_s, self.timeout_keep_alive), self._look_at_idleness)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close_in_time()

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP: in the one shape that every error has."""
        self.refuse(RequestError("malformed_request", msg))

    def refuse(self, error: ServiceError) -> None:
        """Answers what is no request, or never will be one, and closes."""
        if self.transport.is_closing():
            return
        self.awaiting_since_s = None
        response = error_response(error, new_id(Kind.REQUEST))
        response.headers = [header for header in response.headers if header[0] != b"connection"]
        response.headers.append((b"content-type", response.content_type))
        response.headers.append((b"content-length", b"%d" % len(response.body)))
        self.transport.write(self._rendered(response, keep_alive=False, with_body=True))
        self.transport.close()
        self._close_in_time()

    def hang_up(self) -> None:
        """Closes a connection on which nothing is under way."""
        self.awaiting_since_s = None
        self.transport.close()

    def _watch_reading(self, unread_bytes: int, share_bytes: int) -> None:
        """Drops the connection unless the client has read a share of what it was sent by the next look."""
        responder: Responder = self.app
        self._stop_watching()
        self._stall_timer = self.loop.call_later(
            responder.timeouts.stall_s + _SINK_FIRST_S, self._look_at_reading, unread_bytes, share_bytes
        )

    def _look_at_reading(self, before_bytes: int, share_bytes: int) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes > before_bytes - share_bytes:
            reset(self.transport)
        else:
            self._watch_reading(unread_bytes, share_bytes)

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _close_in_time(self) -> None:
        """Closing waits for a client that does not read, be it little; here it does not wait for ever."""
        if self._stall_timer is None and (unread_bytes := self.transport.get_write_buffer_size()):
            self._watch_reading(unread_bytes, unread_bytes // _READ_SHARE)

    def _owes_an_answer(self) -> bool:
        # uvicorn declares that there always is a cycle, and starts without one.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    async def _answer(self, short: _ShortCycle, request: Request) -> None:
        responder: Responder = self.app
        if responder.readiness.draining:
            short.keep_alive = False
        response = await responder.respond(request)
        if response is None or short.disconnected:
            return
        if responder.readiness.draining:
            short.keep_alive = False
        self._write(self._rendered(response, short.keep_alive, with_body=request.method != "HEAD"))
        short.response_complete = True
        if not short.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _write(self, answer: bytes) -> None:
        # In pieces, because TLS counts as unread only what it has not handed on, and hands one piece on whole.
        for start in range(0, len(answer), _PIECE_BYTES):
            self.transport.write(answer[start : start + _PIECE_BYTES])

    def _rendered(self, response: Response, keep_alive: bool, *, with_body: bool) -> bytes:
        status_line, headers = STATUS_LINE[response.status], self.server_state.default_headers
        return rendered(response, status_line, headers, keep_alive=keep_alive, with_body=with_body)

    def _begin_uvicorns_way(self) -> None:
        super().on_message_begin()
        self.url = self._head.url
        for name, value in self._head.headers.items():
            super().on_header(name, value)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["extensions"] = {WAY: {WAY: (self, cycle, cycle.scope["http_version"] != "1.0")}}
        self._run(cycle.run_asgi(app))

    def _run(self, work: Any) -> None:
        task = self._task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if self._task is task:
            self._task = None
