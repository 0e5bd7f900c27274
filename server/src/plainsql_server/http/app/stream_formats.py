"""The stream formats: server-sent events, NDJSON and CSV.

The rows arrive already framed, in the encoding that the format asks for. This module produces what comes before and
after them. Sending is in `http/data/streams.py`.
"""

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.result import Shape
from plainsql_server.data_plane.stream import WHY_BUFFERED, StreamEnd
from plainsql_server.engine.encoding.csv_values import quoted
from plainsql_server.engine.encoding.shapes import Encoding
from plainsql_server.http.server.answers import (
    Count,
    Error,
    Failure,
    OmittedNotices,
    QueryTimings,
    RequestId,
    ShownNotices,
    Success,
    notice_fields,
)
from plainsql_server.http.server.errors import error_object


class StreamColumns(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The start of a stream: the event `columns`, or the first line."""

    columns: Annotated[list[str], Meta(description="Column names, in order.")]
    types: Annotated[list[str], Meta(description="PostgreSQL type names, in the order of `columns`.")]
    buffered: Annotated[
        bool, Meta(description="True if the statement ran to its end, and was committed, before its rows are sent.")
    ] = False
    buffered_reason: Annotated[str | None, Meta(description="If `buffered`: why the rows were not sent earlier.")] = (
        None
    )
    request_id: RequestId


class StreamDone(msgspec.Struct, kw_only=True):
    """The end of a complete stream: the event `done`."""

    row_count: Annotated[Count, Meta(description="Number of rows sent.")]
    affected_rows: Annotated[Count, Meta(description="Number of rows changed.")]
    truncated: Annotated[bool, Meta(description="Whether `max_rows` cut the result short.")]
    command: Annotated[str, Meta(description="The SQL command, such as SELECT.")]
    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET
    timings: QueryTimings


class LastLine(StreamDone, kw_only=True):
    """The last line of a complete NDJSON stream."""

    success: Success = True


class StreamError(Error, kw_only=True, omit_defaults=True):
    """The end of a failed stream: the event `error`."""

    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET
    request_id: RequestId


class StreamFormat(Protocol):
    """A stream format."""

    name: str
    content_type: bytes
    # Sent to keep the stream alive while there are no rows. Empty if the format has nothing to send.
    ping: bytes

    def encoding(self, asked: Encoding) -> Encoding:
        """The encoding of the rows."""

    def columns(self, shape: Shape, request_id: str, *, is_buffered: bool) -> bytes:
        """The bytes before the first row."""

    def done(self, end: StreamEnd, total_us: int) -> bytes:
        """The bytes after the last row."""

    def error(self, error: ServiceError, request_id: str) -> bytes | None:
        """The end of a failed stream. None if the format can only show a failure by closing the connection."""


class Events:
    """Server-sent events: `columns`, then `row` for each row, then `done` or `error`."""

    name = "sse"
    content_type = b"text/event-stream"
    ping = b": ping\n\n"

    def encoding(self, asked: Encoding) -> Encoding:
        return asked._replace(before=b"event: row\ndata: ", after=b"\n\n")

    def columns(self, shape: Shape, request_id: str, *, is_buffered: bool) -> bytes:
        return b"event: columns\ndata: %b\n\n" % _columns(shape, request_id, is_buffered)

    def done(self, end: StreamEnd, total_us: int) -> bytes:
        return b"event: done\ndata: %b\n\n" % msgspec.json.encode(_done(StreamDone, end, total_us))

    def error(self, error: ServiceError, request_id: str) -> bytes | None:
        reported = notice_fields(error.notices)
        shown = StreamError(
            request_id=request_id, notices=reported.notices, notices_omitted=reported.notices_omitted,
            **msgspec.structs.asdict(error_object(error)),
        )  # fmt: skip
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(shown)


class Lines:
    """NDJSON: the columns, one line per row, and a last line whose `success` shows how the stream ended."""

    name = "ndjson"
    content_type = b"application/x-ndjson"
    ping = b""

    def encoding(self, asked: Encoding) -> Encoding:
        return asked._replace(after=b"\n")

    def columns(self, shape: Shape, request_id: str, *, is_buffered: bool) -> bytes:
        return _columns(shape, request_id, is_buffered) + b"\n"

    def done(self, end: StreamEnd, total_us: int) -> bytes:
        return msgspec.json.encode(_done(LastLine, end, total_us)) + b"\n"

    def error(self, error: ServiceError, request_id: str) -> bytes | None:
        reported = notice_fields(error.notices)
        failure = Failure(
            error=error_object(error), request_id=request_id,
            notices=reported.notices, notices_omitted=reported.notices_omitted,
        )  # fmt: skip
        return msgspec.json.encode(failure) + b"\n"


class Csv:
    """CSV: a header line, then one line per row. It has no way to report a failure."""

    name = "csv"
    content_type = b"text/csv; charset=utf-8; header=present"
    ping = b""

    def encoding(self, asked: Encoding) -> Encoding:
        return asked._replace(after=b"\r\n", as_csv=True)

    def columns(self, shape: Shape, request_id: str, *, is_buffered: bool) -> bytes:  # noqa: ARG002
        return b",".join([quoted(name.encode()) for name in shape.columns]) + b"\r\n" if shape.columns else b""

    def done(self, end: StreamEnd, total_us: int) -> bytes:  # noqa: ARG002
        return b""

    def error(self, error: ServiceError, request_id: str) -> bytes | None:  # noqa: ARG002
        return None


STREAM_FORMATS: dict[bytes, StreamFormat] = {
    b"text/event-stream": Events(),
    b"application/x-ndjson": Lines(),
    b"text/csv": Csv(),
}


_BUFFERED = b',"buffered":true,"buffered_reason":' + msgspec.json.encode(WHY_BUFFERED)


def _columns(shape: Shape, request_id: str, is_buffered: bool) -> bytes:
    return b'{%b%b,"request_id":"%b"}' % (shape.json, _BUFFERED if is_buffered else b"", request_id.encode())


def _done(model: type[StreamDone], end: StreamEnd, total_us: int) -> StreamDone:
    completion = end.completion
    reported = notice_fields(completion.notices)
    return model(
        notices=reported.notices,
        notices_omitted=reported.notices_omitted,
        row_count=end.row_count,
        affected_rows=completion.affected_rows,
        truncated=end.truncated,
        command=completion.command,
        timings=QueryTimings(total_us=total_us, exec_us=completion.exec_us),
    )
