"""A kept connection is closed when nobody used it for as long as it is kept, and not before."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from plainsql_server.http.server.accepting.connections import ConnectionLimits, Connections
from plainsql_server.http.server.protocol import ClientTimeouts
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response
from server.tests.http_server import port_of, started

pytestmark = pytest.mark.unit

KEPT_S = 1


class Echo:
    """Answers every request with its body, at the pace that the body asks for."""

    readiness = Readiness(0)
    timeouts = ClientTimeouts(10.0, 10.0)
    connections = Connections(ConnectionLimits(total=100, per_address=0, request_s=10.0, idle_s=10.0))
    lane = None

    async def respond(self, request: Request) -> Response | None:
        await asyncio.sleep(float(request.body))
        return Response(200, request.body, [(b"content-length", b"%d" % len(request.body))])

    async def __call__(self, _scope: object, _receive: object, _send: object) -> None:
        raise AssertionError("the fast path does not call this")


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = await started(Echo(), lifespan="off", timeout_keep_alive=KEPT_S)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        try:
            yield reader, writer
        finally:
            writer.close()
    finally:
        await server.shutdown()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, takes_s: str) -> None:
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(takes_s), takes_s.encode()))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(len(takes_s)) == takes_s.encode()


async def test_an_idle_connection_is_closed_when_its_time_is_over() -> None:
    async with connection() as (reader, writer):
        await ask(reader, writer, "0")
        since_s = time.monotonic()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        assert time.monotonic() - since_s > KEPT_S * 0.9


async def test_the_idle_timeout_of_a_connection_starts_at_its_last_answer() -> None:
    async with connection() as (reader, writer):
        for _ in range(4):
            await ask(reader, writer, "0.4")
        # One that takes longer than a connection is kept idle, so that the timer comes due meanwhile.
        await ask(reader, writer, "1.5")
        since_s = time.monotonic()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        assert time.monotonic() - since_s > KEPT_S * 0.9
