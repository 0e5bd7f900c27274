"""The HTTP/1.1 connection: uvicorn's protocol, with a fast path for small requests.

A request with a small body of known length is passed to the application as one object once it is complete, and its
answer is written directly, without ASGI messages in between: measurements showed that these are the largest HTTP cost
of a query. All other requests (large or chunked bodies, pipelining) take uvicorn's path. On both paths, a request is
cancelled if its client disconnects, and a client that does not read its answer is disconnected. Parsing, keep-alive,
flow control and shutdown are uvicorn's.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Protocol, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from plainsql_server.core.errors import LimitError, RequestError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.http.server.accepting.addresses import network_of
from plainsql_server.http.server.accepting.connections import Connections
from plainsql_server.http.server.channel import CancelReason, ResponseChannel
from plainsql_server.http.server.errors import error_response
from plainsql_server.http.server.fast_lane import Lane, Track
from plainsql_server.http.server.long_body import LongBody, send_parts
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.request_head import BETWEEN_REQUESTS, IN_BODY, MAX_HEAD_BYTES, Head
from plainsql_server.http.server.requests import CHANNEL, Request
from plainsql_server.http.server.responses import Response, rendered
from plainsql_server.http.server.sink import reset

# A client must read at least 1/8 of the pending answer within each stall timeout.
_READ_SHARE = 8
_CHUNK_BYTES = 256 * 1024
# How many requests a client may send before it has the answer to the first one. Each is an object of a few kilobytes.
_MAX_PIPELINED = 128
# Extra time for the sink of a stream, which watches its client itself and logs the outcome. It should act first.
_SINK_FIRST_S = 0.5


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long to wait for a client: for the body of a request, and for it to read the answer."""

    body_s: float
    stall_s: float


class Responder(Protocol):
    """Answers requests: the application of a plane."""

    readiness: Readiness
    timeouts: ClientTimeouts
    connections: Connections
    lane: Lane | None

    async def respond(self, request: Request) -> Response | None:
        """The answer, or None if the client disconnected."""


class _FastPathCycle:
    """A request on the fast path, with the attributes that uvicorn's protocol expects of a cycle."""

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
    """Replaces the event that uvicorn sets when a body arrives. On the fast path, nothing waits for it."""

    def set(self) -> None:
        return


_NEVER_AWAITED = _Unwatched()


class FastPathProtocol(HttpToolsProtocol):
    """The connection of one client."""

    _fast_cycle: _FastPathCycle | None = None
    # The fast lane's side of the connection, where there is a lane.
    _track: Track | None = None
    # Of the request that is being answered.
    _channel: ResponseChannel | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    # What has not been written yet of a long body.
    unsent_bytes = 0
    # When the connection became idle; infinite while it is in use.
    _idle_since_s = math.inf
    _idle_timer: asyncio.TimerHandle | None = None

    # For `http/server/accepting/connections.py`: when the wait for the first request started, or when the next one
    # started to arrive.
    address = ""
    awaiting_since_s: float | None = None
    has_begun = False
    # For `http/server/accepting/unauthenticated.py`. Exempt is what comes after a key is accepted, until the answer is
    # complete, and the rest of a body whose request is answered, because that is not kept.
    held_bytes = 0
    _is_exempt = False
    _open_head_bytes = 0
    _has_read_body = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._head = head = Head()
        # The parser looks up its callbacks once, when it is created, and finds these before the class's methods.
        vars(self).update(on_message_begin=head.begin, on_url=head.add_url, on_header=head.add_header)
        super().__init__(*arguments, **named)
        responder: Responder = self.app
        self._unauthenticated = responder.connections.unauthenticated
        if responder.lane is not None:
            self._track = responder.lane.track(self, head, self.data_received)
            # The transport finds it before the class's method, too.
            vars(self).update(data_received=self._track.data_received)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self.awaiting_since_s = self.loop.time()
        responder: Responder = self.app
        responder.connections.admit(self)

    def data_received(self, data: bytes) -> None:
        """Has the parser read what the client sent."""
        was_exempt, begun = self._is_exempt, self._head.begun
        if not was_exempt and not self._unauthenticated.hold(self, len(data)):
            return
        self._has_read_body = False
        super().data_received(data)
        progress = self._head.progress
        if was_exempt and not self._is_exempt and (progress != BETWEEN_REQUESTS or self.pipeline):
            # The data had the end of what was exempt, and of what comes after it, too much may be kept.
            self._unauthenticated.hold(self, len(data))
        elif progress != BETWEEN_REQUESTS and self._head.begun == begun and not self._has_read_body:
            # Of a head, or between the parts of a body or after it: the parser keeps it until it is complete.
            self._limit_head(len(data))

    def _limit_head(self, size_bytes: int) -> None:
        """Counts what arrives of a head that began earlier. How much of the data before belongs to it is not known."""
        self._open_head_bytes += size_bytes
        if self._open_head_bytes > MAX_HEAD_BYTES:
            self.send_400_response("The URL and the headers of the request are too long.")

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered: it is complete, or its body is read under the body timeout."""
        return (self._fast_cycle is None and self._owes_an_answer()) or self._is_in_lane()

    def on_headers_complete(self) -> None:
        self._head.progress = IN_BODY
        self._open_head_bytes = 0
        if not self._owes_an_answer() and self._head.is_short():
            newer = self.parser.get_http_version() != "1.0"
            self._fast_cycle = _FastPathCycle(newer and self.parser.should_keep_alive(), newer)
            self.cycle = self._fast_cycle  # type: ignore[assignment]
            return
        self._fast_cycle = None
        self._awaits_nothing()
        self._begin_with_uvicorn()

    def on_body(self, body: bytes) -> None:
        self._has_read_body = True
        self._open_head_bytes = 0
        if self._fast_cycle is None:
            super().on_body(body)
        else:
            self._fast_cycle.body += body

    def on_message_complete(self) -> None:
        self._head.progress = BETWEEN_REQUESTS
        self._open_head_bytes = 0
        if (fast_cycle := self._fast_cycle) is None:
            if self.cycle.response_complete:
                self._is_exempt = False
            super().on_message_complete()
            return
        self._fast_cycle = None
        self._awaits_nothing()
        fast_cycle.more_body = False
        request = self._head.request(self.parser.get_method(), bytes(fast_cycle.body))
        if self._track is not None and fast_cycle.keep_alive:
            self._track.learn(request)
        self._start(fast_cycle, request)

    def take_over(self, request: Request) -> None:
        """Answers a request that the fast lane hands over."""
        fast_cycle = _FastPathCycle(keep_alive=True, chunked=True)
        fast_cycle.more_body = False
        self.cycle = fast_cycle  # type: ignore[assignment]
        self._idle_since_s = math.inf
        self._start(fast_cycle, request)

    def request_begins(self) -> None:
        """Called by the fast lane when it has a part of a request."""
        self._unset_keepalive_if_required()

    def part_arrived(self, size_bytes: int) -> None:
        """Called by the fast lane with the size of the part that it has."""
        self._unauthenticated.hold(self, size_bytes - self.held_bytes)

    def request_is_complete(self) -> None:
        """Called by the fast lane when it has the rest of it."""
        self._unauthenticated.release(self)
        self._awaits_nothing()
        # If it was handed over at once, the connection is idle from the end of the answer on.
        if not self._owes_an_answer():
            self._idle_since_s = self.loop.time()

    def key_accepted(self) -> None:
        self._is_exempt = True
        self._unauthenticated.release(self)

    def make_way(self, error: LimitError) -> None:
        """Closes the connection: its request has no accepted key, and others need the memory."""
        if self._owes_an_answer() and self._fast_cycle is None:
            # It waits for its key to be looked up.
            self.transport.abort()
        else:
            self.refuse(error)

    def _start(self, fast_cycle: _FastPathCycle, request: Request) -> None:
        request.channel = ResponseChannel(self, fast_cycle, fast_cycle.chunked)
        task = self._run(self._answer(fast_cycle, request), request.channel)
        if (head_start := request.head_start) is not None:
            # A task that is cancelled before it starts never enters the lease.
            task.add_done_callback(lambda _: head_start.abandon())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._track is not None:
            self._track.close()
        super().connection_lost(exc)
        responder: Responder = self.app
        responder.connections.release(self)
        self._stop_watching()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._channel is not None and self._track is not None:
            # Not at once: a task that the fast lane has handed over may not have started, and must, to report it.
            self.loop.call_soon(self._channel.cancel, CancelReason.CLIENT_GONE)
        elif self._channel is not None:
            self._channel.cancel(CancelReason.CLIENT_GONE)

    def shutdown(self) -> None:
        if self._track is not None:
            self._track.leave()
        super().shutdown()
        if self.transport.is_closing():
            self._close_in_time()
        if self._channel is not None:
            responder: Responder = self.app
            last_s = responder.readiness.last_answers_after_s
            self.loop.call_later(last_s, self._channel.cancel, CancelReason.SHUTDOWN)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._track is not None:
            self._track.is_paused = True
        # All of a long body is watched from its beginning to its end.
        if not self.unsent_bytes:
            self._watch_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._track is not None:
            self._track.is_paused = False
        if not self.unsent_bytes:
            self._stop_watching()

    def on_response_complete(self) -> None:
        """Continues with the next request, as uvicorn does, except for the idle timer: see `_look_at_idleness`."""
        self.server_state.total_requests += 1
        self._forget_answered()
        if self._track is not None:
            self._track.request_answered()
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

    def _forget_answered(self) -> None:
        """Counts nothing of an answered request, unless others wait or arrive behind it: some bytes are theirs."""
        progress = self._head.progress
        is_answered = progress == IN_BODY and self.cycle.response_complete
        self._is_exempt = is_answered
        if not self.pipeline and (progress == BETWEEN_REQUESTS or is_answered):
            self._unauthenticated.release(self)

    def _unset_keepalive_if_required(self) -> None:
        """Called by uvicorn when data arrives from the client."""
        self._idle_since_s = math.inf
        if not self.has_begun:
            self.has_begun = True
            self.awaiting_since_s = self.loop.time()

    def _awaits_nothing(self) -> None:
        self.has_begun = False
        self.awaiting_since_s = None

    def _look_at_idleness(self) -> None:
        """Closes the connection if it was idle for too long. One timer serves the whole life of a connection, because
        setting one with each answer and cancelling it with each request costs measurable time.
        """
        left_s = self._idle_from_s() + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            self._idle_timer = None
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_later(min(left_s, self.timeout_keep_alive), self._look_at_idleness)

    def _idle_from_s(self) -> float:
        if self._track is None:
            return self._idle_since_s
        return math.inf if self._track.is_busy else max(self._idle_since_s, self._track.idle_since_s)

    def _is_in_lane(self) -> bool:
        return self._track is not None and self._track.is_busy

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close_in_time()

    def send_400_response(self, msg: str) -> None:
        """Answers invalid HTTP in the shape that every error has, unless the client awaits another answer, or none.

        It would take this for the earlier answer, and for the truth about a statement that may have run.
        """
        is_arriving = self._head.progress == IN_BODY
        if self.pipeline or self._is_in_lane() or (is_arriving and not self._owes_an_answer()):
            self.transport.abort()
        elif not is_arriving and self._owes_an_answer():
            # The last answer. Nothing more is read.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        else:
            self.refuse(RequestError("malformed_request", msg))

    def refuse(self, error: ServiceError) -> None:
        """Answers an invalid, incomplete or unwanted request with an error and closes the connection."""
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
        """Closes an idle connection."""
        self.awaiting_since_s = None
        self.transport.close()

    def _watch_unread(self) -> None:
        unread_bytes = self._unread_bytes()
        self._watch_reading(unread_bytes, unread_bytes // _READ_SHARE)

    def _unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + self.unsent_bytes

    def _watch_reading(self, unread_bytes: int, share_bytes: int) -> None:
        """Drops the connection unless the client has read `share_bytes` more by the next check."""
        responder: Responder = self.app
        self._stop_watching()
        self._stall_timer = self.loop.call_later(
            responder.timeouts.stall_s + _SINK_FIRST_S, self._look_at_reading, unread_bytes, share_bytes
        )

    def _look_at_reading(self, before_bytes: int, share_bytes: int) -> None:
        unread_bytes = self._unread_bytes()
        # If the client has read all that was written, it waits for us.
        is_behind = self.flow.write_paused or not self.unsent_bytes
        if is_behind and unread_bytes > before_bytes - share_bytes:
            reset(self.transport)
        else:
            self._watch_reading(unread_bytes, share_bytes)

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _close_in_time(self) -> None:
        """Limits how long closing waits for a client that does not read the rest of its answer."""
        if self._stall_timer is None and self._unread_bytes():
            self._watch_unread()

    def _owes_an_answer(self) -> bool:
        # uvicorn declares that there always is a cycle, but starts without one.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    async def _answer(self, fast_cycle: _FastPathCycle, request: Request) -> None:
        responder: Responder = self.app
        if responder.readiness.draining:
            fast_cycle.keep_alive = False
        response = await responder.respond(request)
        if response is None or fast_cycle.disconnected:
            return
        if responder.readiness.draining:
            fast_cycle.keep_alive = False
        with_body = request.method != "HEAD"
        self.write_answer(self._rendered(response, fast_cycle.keep_alive, with_body=with_body))
        if with_body and isinstance(response.body, LongBody):
            is_sent = await send_parts(response.body, request.channel, self._write_part)
            if not is_sent or self.transport.is_closing():
                return
        fast_cycle.response_complete = True
        if not fast_cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def write_answer(self, answer: bytes) -> None:
        """Writes an answer, or the rest of one."""
        # Write in chunks: TLS passes each write on whole, and what it has passed on no longer counts as unread.
        for start in range(0, len(answer), _CHUNK_BYTES):
            self.transport.write(answer[start : start + _CHUNK_BYTES])

    async def _write_part(self, part: bytes) -> bool:
        # It returns at once if the client is not behind, or gone.
        await self.flow.drain()
        if self.transport.is_closing():
            # Writing would raise an exception, which would keep the whole body until a garbage collection.
            return False
        self.transport.write(part)
        return True

    def note_unsent(self, unsent_bytes: int) -> None:
        is_first, self.unsent_bytes = self.unsent_bytes == 0, unsent_bytes
        if unsent_bytes == 0:
            if not self.flow.write_paused:
                self._stop_watching()
        elif is_first:
            self._watch_unread()

    def _rendered(self, response: Response, keep_alive: bool, *, with_body: bool) -> bytes:
        status_line, headers = STATUS_LINE[response.status], self.server_state.default_headers
        return rendered(response, status_line, headers, keep_alive=keep_alive, with_body=with_body)

    def _begin_with_uvicorn(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            # This ends parsing, and uvicorn calls `send_400_response`.
            raise httptools.HttpParserError
        super().on_message_begin()
        self.url = self._head.url
        for name, value in self._head.headers.items():
            super().on_header(name, value)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        responder: Responder = self.app
        if responder.readiness.draining:
            cycle.keep_alive = False
        channel = ResponseChannel(self, cycle, cycle.scope["http_version"] != "1.0")
        cycle.scope["extensions"] = {CHANNEL: {CHANNEL: channel}}
        self._run(cycle.run_asgi(app), channel)

    def _run(self, work: Any, channel: ResponseChannel) -> "asyncio.Task[None]":
        self._channel = channel
        task = channel.task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if self._channel is not None and self._channel.task is task:
            self._channel = None
