"""Sends a query's answer as a stream: the head, the rows as they arrive, and exactly one end.

Until PostgreSQL has answered, an error is an ordinary response. After that, an error is the end of the stream. The
formats are in `stream_formats.py`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    EngineError,
    InternalError,
    Outcome,
    ServiceError,
    described,
)
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Shape
from plainsql_server.core.sql_text import without_stream_hint
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.stream import ReaderTooSlow, StreamEnd, Streams
from plainsql_server.http.app.credential_watch import CredentialWatch, access_ended
from plainsql_server.http.app.stream_formats import STREAM_FORMATS, StreamFormat
from plainsql_server.http.server.accept import preferred
from plainsql_server.http.server.channel import CancelReason
from plainsql_server.http.server.cors import cors_headers
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response
from plainsql_server.http.server.sink import ClientStalled, Sink

_STREAM_TYPES = tuple(STREAM_FORMATS)
# How much to write before checking whether the client keeps up.
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """Time limits of a stream: after how long without data to send a ping, and when a client counts as stalled."""

    ping_ms: int
    stall_ms: int


class StreamedAnswers:
    """Answers queries with streams."""

    def __init__(self, streams: Streams, pace: Pace, credential_watch: CredentialWatch) -> None:
        self._streams = streams
        self._pace = pace
        self._credential_watch = credential_watch

    async def answer(
        self, request: Request, principal: Principal, job: StatementJob, stream_format: StreamFormat
    ) -> Response:
        """Streams the answer and returns it, for the log. Raises ServiceError if nothing was sent.

        Cancelling it cancels the statement.
        """
        job.encoding = stream_format.encoding(job.encoding)
        delivery = _Delivery(request, stream_format, self._pace)
        try:
            async with self._credential_watch.watched(request, principal):
                end = await self._streams.run(principal, job, delivery)
            delivery.finish(end)
        except asyncio.CancelledError:
            reason = request.channel.cancel_reason
            if reason is CancelReason.ACCESS_ENDED and not delivery.has_begun:
                raise access_ended(job.outcome) from None
            if reason is CancelReason.CLIENT_GONE or not delivery.has_begun:
                delivery.give_up("client_gone")
                raise
            # The outcome is the statement's: one that writes was committed before its first row was sent.
            ended = access_ended if reason is CancelReason.ACCESS_ENDED else _shutting_down
            delivery.fail(ended(job.outcome))
        except ClientStalled:
            delivery.give_up("client_stalled")
        except ReaderTooSlow:
            delivery.give_up("client_stalled")
            delivery.abort()
        except ServiceError as error:
            if not delivery.has_begun:
                raise
            delivery.fail(error)
        except Exception as error:
            if not delivery.has_begun:
                raise
            failure = InternalError(described(error))
            failure.outcome = job.outcome
            delivery.fail(failure)
        return delivery.response


def wanted_format(request: Request, job: StatementJob) -> StreamFormat | None:
    """The requested stream format, or None. Removes a STREAM hint from the statement."""
    hinted = without_stream_hint(job.sql) if "/*+" in job.sql else None
    if hinted is not None:
        job.sql = hinted
    wanted = preferred(request.headers.get(b"accept"), _STREAM_TYPES, must=hinted is not None)
    return None if wanted is None else STREAM_FORMATS[wanted]


class _Delivery:
    """The delivery of one stream to its client."""

    def __init__(self, request: Request, stream_format: StreamFormat, pace: Pace) -> None:
        self._request = request
        self._format = stream_format
        self._ping_s = pace.ping_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._sink = Sink(request.channel, pace.stall_ms / 1000)
        # Whether the last byte sent is in the middle of a row.
        self._is_in_row = False
        self._timer: asyncio.TimerHandle | None = None
        self._wrote_s = 0.0
        self.has_begun = False
        # For the log, updated while the stream runs.
        self.response = Response(200, b"", content_type=stream_format.content_type, stream=stream_format.name)

    async def begin(self, shape: Shape, queue_us: int, *, is_buffered: bool) -> None:
        request, response = self._request, self.response
        self.has_begun = True
        request.streamed = response
        response.queue_us = queue_us
        engine_us = max(0, monotonic_us() - request.started_us - queue_us)
        response.headers += (
            (b"content-type", response.content_type),
            (b"cache-control", b"no-store"),
            # Otherwise nginx and other proxies that know this header would buffer the rows.
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", request.id.encode()),
            (b"server-timing", b"queue;dur=%.3f, engine;dur=%.3f" % (queue_us / 1000, engine_us / 1000)),
            *request.rate_headers,
            *cors_headers(request),
        )
        self._sink.begin(response.status, response.headers)
        self._columns = self._format.columns(shape, request.id, is_buffered=is_buffered)
        if self._format.ping:
            self._timer = self._loop.call_later(self._ping_s, self._ping)

    async def take(self, rows: Sequence[bytes]) -> None:
        # Write in chunks and wait after each: TLS would accept a large write whole, even if the client isn't reading.
        for chunk, self._is_in_row in _chunks(rows):
            self._write(chunk)
            if self._sink.is_behind:
                await self._sink.drain()
        self.response.row_count += len(rows)

    def finish(self, end: StreamEnd) -> None:
        """Ends a complete stream."""
        response = self.response
        response.exec_us, response.command = end.completion.exec_us, end.completion.command
        self._end(self._format.done(end, monotonic_us() - self._request.started_us))

    def fail(self, error: ServiceError) -> None:
        """Ends a failed stream."""
        self.response.error_code = error.code
        self.response.failure = error
        last = self._format.error(error, self._request.id)
        if last is not None and not self._is_in_row:
            self._end(last)
        else:
            self._stop_pinging()
            self._sink.break_off()
            self.response.sent_bytes = self._sink.sent_bytes

    def give_up(self, error_code: str) -> None:
        """Records that the client is gone or stalled. Sends nothing more."""
        self._stop_pinging()
        self.response.status = 499
        self.response.error_code = error_code
        self.response.sent_bytes = self._sink.sent_bytes

    def abort(self) -> None:
        """Closes the connection of a client that is too slow but still connected."""
        self._sink.abort()

    def _write(self, data: bytes) -> None:
        if self._columns:
            data, self._columns = self._columns + data, b""
        self._wrote_s = self._loop.time()
        self._sink.write(data)

    def _end(self, last: bytes) -> None:
        self._stop_pinging()
        self._sink.finish(self._columns + last)
        self.response.sent_bytes = self._sink.sent_bytes

    def _stop_pinging(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ping(self) -> None:
        silent_s = self._loop.time() - self._wrote_s
        if silent_s >= self._ping_s and not self._sink.is_behind and not self._is_in_row:
            self._write(self._format.ping)
            silent_s = 0.0
        self._timer = self._loop.call_later(max(0.001, self._ping_s - silent_s), self._ping)


def _chunks(rows: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The rows in chunks to write at once, each with whether it ends within a row. Only large rows are cut."""
    chunk: list[bytes] = []
    size_bytes = 0
    for row in rows:
        if chunk and size_bytes + len(row) > _CHUNK_BYTES:
            yield b"".join(chunk), False
            chunk, size_bytes = [], 0
        if len(row) <= _CHUNK_BYTES:
            chunk.append(row)
            size_bytes += len(row)
            continue
        for start in range(0, len(row), _CHUNK_BYTES):
            yield row[start : start + _CHUNK_BYTES], start + _CHUNK_BYTES < len(row)
    if chunk:
        yield b"".join(chunk), False


def _shutting_down(outcome: Outcome) -> ServiceError:
    return EngineError(
        "shutting_down",
        "The service is restarting, and the stream was cancelled before it finished.",
        retryable=outcome is not Outcome.COMMITTED,
        retry_after_ms=RETRY_AFTER_MS,
        outcome=outcome,
    )
