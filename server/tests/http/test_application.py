"""Requests while the service stops: each gets an answer that says so."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvicorn

from plainsql_server.core.observation import Observation
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.application import Application
from plainsql_server.http.app.contract import Contract
from plainsql_server.http.app.routes import AnswerAnyone, RouteTable, open_route
from plainsql_server.http.server.accepting.connections import ConnectionLimits, Connections
from plainsql_server.http.server.protocol import ClientTimeouts, FastPathProtocol
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response
from plainsql_server.limits.permits import Permits
from server.tests.http_server import port_of, started

pytestmark = pytest.mark.unit

GRACE_S = 3


def ignore(_: Observation) -> None:
    pass


def application(answer: AnswerAnyone, while_closing: Callable[[], object] = lambda: None) -> Application:
    """An application with one open route, /x, that takes its time to close."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[tuple[RouteTable, Principals, Permits]]:
        route = open_route("POST", "/x", "Something", answer, contract=Contract(answers={200: None}, errors=()))
        # An open route needs neither of the two.
        yield RouteTable([route]), cast(Principals, object()), cast(Permits, object())
        closing = while_closing()
        if asyncio.iscoroutine(closing):
            await closing

    connections = Connections(ConnectionLimits(total=100, per_address=0, request_s=10.0, idle_s=10.0))
    return Application(lifespan, ignore, Readiness(0), ClientTimeouts(10.0, 10.0), connections)


async def test_a_request_that_comes_while_the_resources_are_closed_is_not_executed() -> None:
    answers: list[Response | None] = []

    async def fail(_: Request) -> Response:
        raise RuntimeError("the pool is closed")

    async def come_late() -> None:
        answers.append(await app.respond(Request("POST", "/x", b"", {})))

    app = application(fail, come_late)
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, str]:
        return messages.pop(0)

    async def send(_: object) -> None:
        return

    await app({"type": "lifespan"}, receive, send)
    (answer,) = answers
    assert answer is not None
    assert isinstance(answer.body, bytes)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["outcome"]) == (503, "shutting_down", "not_executed")


async def test_a_request_that_arrives_during_the_stop_gets_an_answer_before_the_end() -> None:
    begun = asyncio.Event()

    async def never(_: Request) -> Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    server = await started(application(never), log_level="critical", timeout_graceful_shutdown=GRACE_S)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
    (connection,) = await _connections(server)
    while cast(object, connection.cycle) is None:  # noqa: ASYNC110  # uvicorn's parser is watched
        await asyncio.sleep(0.01)
    stopping = asyncio.create_task(server.shutdown())
    while connection.cycle.keep_alive:  # noqa: ASYNC110  # likewise
        await asyncio.sleep(0.01)
    writer.write(b"b")
    await begun.wait()
    answer = await reader.read()
    await stopping
    writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"shutting_down"' in answer


async def _connections(server: uvicorn.Server) -> list[FastPathProtocol]:
    while not server.server_state.connections:  # noqa: ASYNC110  # uvicorn is watched
        await asyncio.sleep(0.01)
    return [cast(FastPathProtocol, each) for each in server.server_state.connections]
