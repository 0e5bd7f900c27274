"""The end of a stream that the service cuts off: what its client reads, and what it may believe."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from plainsql_server.core.errors import AccessError, LimitError, Outcome
from plainsql_server.core.observation import Observation
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.core.result import Shape
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.stream import Receiver, StreamEnd, Streams
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.credential_watch import CredentialWatch
from plainsql_server.http.app.stream_formats import STREAM_FORMATS
from plainsql_server.http.data.streams import Pace, StreamedAnswers
from plainsql_server.http.server.channel import CancelReason, ResponseChannel
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response

pytestmark = pytest.mark.unit

PRINCIPAL = Principal("org_1", "key_1", "free", frozenset([Scope.READ]))
SHAPE = Shape(("a",), ("text",), b'"columns":["a"],"types":["text"]')
LARGE_ROW = b'event: row\ndata: {"a":"' + b"x" * 200_000 + b'"}\n\n'
SMALL_ROW = b'event: row\ndata: {"a":1}\n\n'


class Flow:
    """Whether the client keeps up."""

    def __init__(self) -> None:
        self.write_paused = False

    async def drain(self) -> None:
        await asyncio.Event().wait()


class Transport:
    """Keeps what is written. A client that reads nothing is behind after the first piece."""

    def __init__(self, flow: Flow, *, reads: bool) -> None:
        self.written = b""
        self.is_closed = False
        self._flow = flow
        self._reads = reads
        self._socket = socket.socket()

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket

    def write(self, data: bytes) -> None:
        self.written += data
        self._flow.write_paused = not self._reads

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()

    def abort(self) -> None:
        self.close()


class Connection:
    """What a response channel needs of a connection."""

    class server_state:  # noqa: N801  # uvicorn's name
        default_headers: tuple[()] = ()

    def __init__(self, *, reads: bool) -> None:
        self.flow = Flow()
        self.transport = Transport(self.flow, reads=reads)

    def on_response_complete(self) -> None:
        self.transport.close()


class Cycle:
    keep_alive = True
    response_complete = False


class OneStream:
    """Streams one row of a statement, which has this outcome then, and waits."""

    def __init__(self, row: bytes, outcome: Outcome, *, begins: bool = True) -> None:
        self.row, self.outcome, self.begins = row, outcome, begins
        self.is_waiting = asyncio.Event()

    async def run(self, _: Principal, job: StatementJob, receiver: Receiver) -> StreamEnd:
        job.outcome = self.outcome
        if self.begins:
            await receiver.begin(SHAPE, 0, is_buffered=False)
            # The first write is behind for a client that does not read.
            asyncio.get_running_loop().call_soon(self.is_waiting.set)
            await receiver.take([self.row])
        self.is_waiting.set()
        await asyncio.Event().wait()
        raise AssertionError


class Lookups:
    """Finds the principal of a secret: each time what the next of the answers says, and the last one from then on."""

    def __init__(self, *answers: Principal | Exception | None) -> None:
        self.answers = list(answers)

    async def find(self, _: str) -> Principal | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def ignore(_: Observation) -> None:
    pass


async def cut(
    stream: OneStream, cut_by: Callable[[ResponseChannel], None], *, reads: bool = True, lookups: Lookups | None = None
) -> tuple[Response, Transport]:
    """The response to a stream that is cut off, for the log, and what its client got."""
    connection = Connection(reads=reads)
    request = Request("POST", "/v1/query", b"", {b"authorization": b"Bearer svc_k_x"})
    request.channel = channel = ResponseChannel(cast(Any, connection), Cycle(), True)
    watch = CredentialWatch(cast(Principals, lookups or Lookups(PRINCIPAL)), ignore, every_ms=1)
    answers = StreamedAnswers(cast(Streams, stream), Pace(60_000, 60_000), watch)
    answering: Awaitable[Response] = answers.answer(
        request, PRINCIPAL, StatementJob("select 1"), STREAM_FORMATS[b"text/event-stream"]
    )
    task = asyncio.ensure_future(answering)
    channel.task = cast("asyncio.Task[None]", task)
    try:
        await stream.is_waiting.wait()
        cut_by(channel)
        return await task, connection.transport
    finally:
        connection.transport.close()


def stop(channel: ResponseChannel) -> None:
    channel.cancel(CancelReason.SHUTDOWN)


def end_access(channel: ResponseChannel) -> None:
    channel.cancel(CancelReason.ACCESS_ENDED)


def wait(_: ResponseChannel) -> None:
    """Something else cuts it off."""


def error_in(written: bytes) -> dict[str, Any]:
    """The error event at the end."""
    event = written.rpartition(b"event: error\ndata: ")[2].partition(b"\n\n")[0]
    error: dict[str, Any] = json.loads(event)
    return error


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ROLLED_BACK])
@pytest.mark.parametrize(("cut_by", "code"), [(stop, "shutting_down"), (end_access, "unauthenticated")])
async def test_a_stream_that_is_cut_off_has_its_statements_outcome(
    outcome: Outcome, cut_by: Callable[[ResponseChannel], None], code: str
) -> None:
    response, transport = await cut(OneStream(SMALL_ROW, outcome), cut_by)
    error = error_in(transport.written)
    assert (error["code"], error["outcome"]) == (code, outcome)
    assert response.error_code == code


async def test_a_stream_that_has_not_begun_has_its_statements_outcome_too() -> None:
    with pytest.raises(AccessError) as ended:
        await cut(OneStream(b"", Outcome.UNKNOWN, begins=False), end_access)
    assert ended.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("cut_by", [stop, end_access])
async def test_a_stream_that_is_cut_off_within_a_row_breaks_off(cut_by: Callable[[ResponseChannel], None]) -> None:
    response, transport = await cut(OneStream(LARGE_ROW, Outcome.COMMITTED), cut_by, reads=False)
    assert 0 < transport.written.count(b"x") < 200_000, "it was cut within the row"
    assert b"error" not in transport.written
    assert not transport.written.endswith(b"0\r\n\r\n"), "the last chunk would say that it is complete"
    assert transport.is_closed
    assert response.error_code in ("shutting_down", "unauthenticated")


@pytest.mark.parametrize(
    "lookups",
    [
        Lookups(None),
        Lookups(PRINCIPAL, LimitError("overloaded", "Too many lookups."), PRINCIPAL, None),
        Lookups(RuntimeError("a defect")),
    ],
    ids=["revoked", "revoked after a lookup that failed", "cannot be looked up"],
)
async def test_a_stream_ends_whose_credential_is_not_known_to_be_valid(lookups: Lookups) -> None:
    _, transport = await cut(OneStream(SMALL_ROW, Outcome.ROLLED_BACK), wait, lookups=lookups)
    assert error_in(transport.written)["code"] == "unauthenticated"
    assert len(lookups.answers) == 1, "a lookup that failed did not end it"
