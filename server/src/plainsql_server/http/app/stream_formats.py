"""The forms of a stream: Server-Sent Events, NDJSON and CSV.

Owns their words. Rows come framed from the engine room, in the encoding that a form asks for; here is what
stands before and after them. Refuses to send anything.
"""

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.result import Shape
from plainsql_server.data_plane.stream import StreamEnd
from plainsql_server.engine.encoding.csv_values import quoted
from plainsql_server.engine.encoding.shapes import Encoding
from plainsql_server.http.server.answers import Count, Error, Failure, QueryTimings, RequestId, Success
from plainsql_server.http.server.errors import error_object


class StreamColumns(msgspec.Struct, kw_only=True):
    """What comes before the first row: the event `columns`, or the first line."""

    columns: Annotated[list[str], Meta(description="Names, in order.")]
    types: Annotated[list[str], Meta(description="PostgreSQL's type names, parallel to `columns`.")]
    request_id: RequestId


class StreamDone(msgspec.Struct, kw_only=True):
    """What ends a whole stream: the event `done`."""

    row_count: Annotated[Count, Meta(description="How many rows were sent.")]
    affected_rows: Annotated[Count, Meta(description="Rows changed.")]
    truncated: Annotated[bool, Meta(description="Whether `max_rows` cut it.")]
    command: Annotated[str, Meta(description="What PostgreSQL calls it.")]
    timings: QueryTimings


class LastLine(StreamDone, kw_only=True):
    """What ends a whole stream of lines."""

    success: Success = True


class StreamError(Error, kw_only=True, omit_defaults=True):
    """What ends a stream that failed: the event `error`."""

    request_id: RequestId


class Form(Protocol):
    """How a stream is told."""

    name: str
    content_type: bytes
    # What says that the stream is alive while there is nothing to say; not every form has a word for it.
    ping: bytes

    def encoding(self, asked: Encoding) -> Encoding:
        """How rows are to be rendered."""

    def columns(self, shape: Shape, request_id: str) -> bytes:
        """What comes before the first row."""

    def done(self, end: StreamEnd, total_us: int) -> bytes:
        """What comes after the last row."""

    def error(self, error: ServiceError, request_id: str) -> bytes | None:
        """What comes last in a stream that failed; None where only a broken connection can say it."""


class Events:
    """Server-Sent Events: `columns`, `row` …, and one of `done` and `error`."""

    name = "sse"
    content_type = b"text/event-stream"
    ping = b": ping\n\n"

    def encoding(self, asked: Encoding) -> Encoding:
        return asked._replace(before=b"event: row\ndata: ", after=b"\n\n")

    def columns(self, shape: Shape, request_id: str) -> bytes:
        return b"event: columns\ndata: %b\n\n" % _columns(shape, request_id)

    def done(self, end: StreamEnd, total_us: int) -> bytes:
        return b"event: done\ndata: %b\n\n" % msgspec.json.encode(_done(StreamDone, end, total_us))

    def error(self, error: ServiceError, request_id: str) -> bytes | None:
        told = StreamError(request_id=request_id, **msgspec.structs.asdict(error_object(error)))
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(told)


class Lines:
    """NDJSON: the columns, a row a line, and a last line whose `success` says how it ended."""

    name = "ndjson"
    content_type = b"application/x-ndjson"
    ping = b""

    def encoding(self, asked: Encoding) -> Encoding:
        return asked._replace(after=b"\n")

    def columns(self, shape: Shape, request_id: str) -> bytes:
        return _columns(shape, request_id) + b"\n"

    def done(self, end: StreamEnd, total_us: int) -> bytes:
        return msgspec.json.encode(_done(LastLine, end, total_us)) + b"\n"

    def error(self, error: ServiceError, request_id: str) -> bytes | None:
        return msgspec.json.encode(Failure(error=error_object(error), request_id=request_id)) + b"\n"


class Csv:
    """CSV: a line of names, then a line a row. It has no word for a failure."""

    name = "csv"
    content_type = b"text/csv; charset=utf-8; header=present"
    ping = b""

    def encoding(self, asked: Encoding) -> Encoding:
        return asked._replace(after=b"\r\n", as_csv=True)

    def columns(self, shape: Shape, request_id: str) -> bytes:  # noqa: ARG002
        return b",".join([quoted(name.encode()) for name in shape.columns]) + b"\r\n" if shape.columns else b""

    def done(self, end: StreamEnd, total_us: int) -> bytes:  # noqa: ARG002
        return b""

    def error(self, error: ServiceError, request_id: str) -> bytes | None:  # noqa: ARG002
        return None


FORMS: dict[bytes, Form] = {
    b"text/event-stream": Events(),
    b"application/x-ndjson": Lines(),
    b"text/csv": Csv(),
}


def _columns(shape: Shape, request_id: str) -> bytes:
    return b'{%b,"request_id":"%b"}' % (shape.json, request_id.encode())


def _done(model: type[StreamDone], end: StreamEnd, total_us: int) -> StreamDone:
    completion = end.completion
    return model(
        row_count=end.row_count,
        affected_rows=completion.affected_rows,
        truncated=end.truncated,
        command=completion.command,
        timings=QueryTimings(total_us=total_us, exec_us=completion.exec_us),
    )
