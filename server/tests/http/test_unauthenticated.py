"""What requests without an accepted key hold: together no more than the limit, and others are served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import uvicorn

from plainsql_server.core.errors import LimitError
from plainsql_server.core.observation import FailureObserved, Observation
from plainsql_server.http.server.accepting.connections import ConnectionLimits, Connections
from plainsql_server.http.server.accepting.unauthenticated import Unauthenticated
from plainsql_server.http.server.protocol import ClientTimeouts, FastPathProtocol
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.requests import AsgiScope, Receive, Request, Send
from plainsql_server.http.server.responses import Response
from server.tests.http_server import port_of, started

pytestmark = pytest.mark.unit

LIMIT_BYTES = 400_000
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + b"x" * 50_000
HALF_A_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 50_000
LIMIT_S = 30.0


class Holder:
    """A connection that holds what it sent."""

    def __init__(self, address: str, began_s: float | None) -> None:
        self.address = address
        self.awaiting_since_s = began_s
        self.held_bytes = 0
        self.made_way = False

    def make_way(self, error: LimitError) -> None:
        assert error.code == "too_many_incomplete_requests"
        self.made_way = True


def held(*connections: Holder, limit_bytes: int = 100) -> Unauthenticated:
    unauthenticated = Unauthenticated(limit_bytes, connections)
    for each in connections:
        unauthenticated.hold(each, 20)
    return unauthenticated


def test_the_oldest_of_the_address_that_holds_the_most_makes_way() -> None:
    others = [Holder("b", 0.0), Holder("c", 1.0)]
    greedy = [Holder("a", 3.0), Holder("a", None), Holder("a", 2.0), Holder("a", 4.0)]
    unauthenticated = held(*others, *greedy)
    assert not any(each.made_way for each in others)
    # Three quarters of the limit are left. The one whose request is complete is not among the first.
    assert [each.made_way for each in greedy] == [True, False, True, True]
    assert unauthenticated.load().held_bytes == 60
    assert unauthenticated.load().closed == 3


def test_what_is_released_counts_no_longer() -> None:
    client = Holder("a", 1.0)
    unauthenticated = held(client)
    for _ in range(10):
        unauthenticated.release(client)
        assert unauthenticated.hold(client, 90)
    assert not client.made_way


def test_a_connection_that_makes_way_for_itself_is_used_no_more() -> None:
    client = Holder("a", 1.0)
    assert not Unauthenticated(100, [client]).hold(client, 101)


async def test_closed_connections_are_reported_together() -> None:
    client, seen = Holder("a", 1.0), list[Observation]()
    unauthenticated = Unauthenticated(100, [client])
    reporting = asyncio.create_task(unauthenticated.report(seen.append, every_s=0.01))
    for _ in range(3):
        unauthenticated.hold(client, 101)
    async with asyncio.timeout(LIMIT_S):
        while not seen:  # noqa: ASYNC110  # the report has no event
            await asyncio.sleep(0.001)
    reporting.cancel()
    (report,) = seen
    assert isinstance(report, FailureObserved)
    assert report.context.startswith("3 connections made way")


class Responder:
    """Accepts every key, except of requests to /refused, and to /unknown, which wait until they are let go."""

    lane = None
    timeouts = ClientTimeouts(10.0, 10.0)

    def __init__(self) -> None:
        self.readiness = Readiness(0)
        limits = ConnectionLimits(1_000, 0, request_s=60.0, idle_s=60.0, unauthenticated_bytes=LIMIT_BYTES)
        self.connections = Connections(limits)
        self.may_end = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        return self.connections.unauthenticated.load().held_bytes

    async def respond(self, request: Request) -> Response | None:
        if request.path == "/unknown":
            await self.may_end.wait()
        elif request.path != "/refused":
            request.channel.connection.key_accepted()
        if request.path == "/accepted":
            await self.may_end.wait()
        return Response(200, b"ok", [(b"content-length", b"2")])

    async def __call__(self, scope: AsgiScope, _receive: Receive, send: Send) -> None:
        """A request with a long body, or behind others. It is answered as one without a valid key is."""
        if scope["path"] == "/unknown":
            await self.may_end.wait()
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    await asyncio.sleep(0)


class Clients:
    """Connections to the server."""

    def __init__(self, server: uvicorn.Server, stack: AsyncExitStack) -> None:
        self._port = port_of(server)
        self._stack = stack

    async def send(self, data: bytes, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection from an address, and sends what is no complete request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        self._stack.push_async_callback(_closed, writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def ask(self, path: str = "/", body: bytes = b"", address: str = "127.0.0.2") -> bytes:
        """The answer to a complete request."""
        request = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
        reader, _ = await self.send(request, address)
        async with asyncio.timeout(LIMIT_S):
            return await reader.readuntil(b"\r\n\r\n")


@pytest.fixture
async def responder() -> Responder:
    return Responder()


@pytest.fixture
async def clients(responder: Responder) -> AsyncIterator[Clients]:
    server = await started(responder, lifespan="off", log_level="critical")
    async with AsyncExitStack() as stack:
        yield Clients(server, stack)
    responder.may_end.set()
    await server.shutdown()


@asynccontextmanager
async def soon() -> AsyncIterator[None]:
    async with asyncio.timeout(LIMIT_S):
        yield


@pytest.mark.parametrize("beginning", [HALF_A_BODY, HALF_A_HEAD])
async def test_incomplete_requests_make_way_for_others(
    clients: Clients, responder: Responder, beginning: bytes
) -> None:
    readers = []
    for _ in range(20):
        readers.append((await clients.send(beginning))[0])
        assert responder.held_bytes <= LIMIT_BYTES
        assert (await clients.ask(body=b"x" * 1_000)).startswith(b"HTTP/1.1 200")
    async with soon():
        answer = await readers[0].read()
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"too_many_incomplete_requests" in answer
    assert responder.connections.unauthenticated.load().closed >= 12


async def test_requests_whose_key_is_looked_up_count(clients: Clients, responder: Responder) -> None:
    request = b"POST /unknown HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + b"x" * 50_000
    waiting = [(await clients.send(request))[0] for _ in range(20)]
    async with soon():
        while responder.connections.unauthenticated.load().closed < 13:  # it has no event
            assert responder.held_bytes <= LIMIT_BYTES
            await asyncio.sleep(0.001)
    responder.may_end.set()
    async with soon():
        answers = [await _first_line(reader) for reader in waiting]
        while responder.held_bytes:  # noqa: ASYNC110  # the connection has no event
            await asyncio.sleep(0.001)
    # Of those that made way, the complete ones got no answer, and the others a refusal.
    assert 0 < answers.count(b"HTTP/1.1 200 OK\r\n") <= 20 - 13
    assert answers.count(b"") > 0


async def _first_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""


async def test_a_request_with_an_accepted_key_does_not_count(clients: Clients, responder: Responder) -> None:
    request = b"POST /accepted HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + b"x" * 50_000
    waiting = [(await clients.send(request))[0] for _ in range(20)]
    assert (await clients.ask()).startswith(b"HTTP/1.1 200")
    responder.may_end.set()
    async with soon():
        for reader in waiting:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert responder.connections.unauthenticated.load().closed == 0


async def test_the_rest_of_a_body_that_is_discarded_does_not_count(clients: Clients, responder: Responder) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (4 * LIMIT_BYTES)
    reader, writer = await clients.send(head)
    async with soon():
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    for _ in range(4):
        writer.write(b"x" * LIMIT_BYTES)
        await writer.drain()
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n\r\n")
    async with soon():
        assert b"HTTP/1.1 200" in await reader.readuntil(b"ok")
    assert responder.connections.unauthenticated.load().closed == 0
    # The next request counts again.
    writer.write(HALF_A_BODY)
    async with soon():
        while responder.held_bytes < len(HALF_A_BODY):  # noqa: ASYNC110  # the connection has no event
            await asyncio.sleep(0.001)


async def test_what_follows_an_answered_request_in_the_same_data_counts(clients: Clients, responder: Responder) -> None:
    reader, _ = await clients.send(b"POST /unknown HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" + HALF_A_HEAD)
    responder.may_end.set()
    async with soon():
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert responder.held_bytes >= len(HALF_A_HEAD)


async def test_a_header_that_never_ends_is_refused(clients: Clients, responder: Responder) -> None:
    reader, writer = await clients.send(b"POST / HTTP/1.1\r\nhost: x\r\nx-long: ")
    sent_bytes = 0
    async with soon():
        while not reader.at_eof() and sent_bytes < 10 * LIMIT_BYTES:
            writer.write(b"x" * 10_000)
            sent_bytes += 10_000
            try:
                async with asyncio.timeout(0.01):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
                    break
            except TimeoutError:
                continue
    assert sent_bytes < LIMIT_BYTES
    assert responder.connections.unauthenticated.load().closed == 0


async def test_requests_that_wait_behind_an_answered_one_count(clients: Clients, responder: Responder) -> None:
    waiting = b"POST /unknown HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + b"x" * 50_000
    reader, _ = await clients.send(b"POST /refused HTTP/1.1\r\nhost: x\r\n\r\n" + waiting + waiting)
    async with soon():
        assert b"HTTP/1.1 200" in await reader.readuntil(b"ok")
        while responder.held_bytes < 2 * len(waiting):  # noqa: ASYNC110  # the connection has no event
            await asyncio.sleep(0.001)


async def test_what_follows_the_end_of_a_discarded_body_counts(clients: Clients, responder: Responder) -> None:
    reader, writer = await clients.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n")
    async with soon():
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.write(b"x" * 70_000 + HALF_A_HEAD)
    async with soon():
        while responder.held_bytes < len(HALF_A_HEAD):  # noqa: ASYNC110  # the connection has no event
            await asyncio.sleep(0.001)


async def test_a_head_that_is_cut_after_long_requests_is_no_long_head(clients: Clients, responder: Responder) -> None:
    reader, writer = await clients.send(b"")
    async with soon():
        while not (opened := list(responder.connections._open)):  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.001)
    (connection,) = opened
    assert isinstance(connection, FastPathProtocol)
    # As the transport does with all that it has read.
    complete = b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + b"x" * 60_000
    connection.data_received(complete * 3 + b"POST /refused HTTP/1.1\r\nhost:")
    writer.write(b" x\r\n\r\n")
    async with soon():
        for _ in range(4):
            assert (await reader.readuntil(b"\r\n\r\n"))[:12] in (b"HTTP/1.1 200", b"okHTTP/1.1 4", b"HTTP/1.1 401")


async def test_a_client_may_not_send_thousands_of_requests_before_an_answer(clients: Clients) -> None:
    one = b"POST /unknown HTTP/1.1\r\nhost: x\r\n\r\n"
    reader, _ = await clients.send(one * 5_000)
    # Without an answer: the client would take it for that to the first request.
    async with soon():
        assert await _first_line(reader) == b""


async def test_invalid_http_behind_a_request_leaves_its_answer_alone(clients: Clients, responder: Responder) -> None:
    reader, _ = await clients.send(b"POST /accepted HTTP/1.1\r\nhost: x\r\n\r\n" + b"no HTTP\r\n\r\n")
    responder.may_end.set()
    async with soon():
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1
    reader, _ = await clients.send(b"no HTTP\r\n\r\n")
    async with soon():
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("endless", [b"0\r\nx-long: ", b"0;"])
async def test_what_follows_a_body_ends(clients: Clients, endless: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    reader, writer = await clients.send(head + endless)
    async with soon():
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        with suppress(ConnectionResetError, BrokenPipeError):
            while not reader.at_eof():
                writer.write(b"x" * 10_000)
                await writer.drain()
                await asyncio.sleep(0.001)
