"""Accepting TLS connections: what starts TLS, what counts how, and how much is done in one turn of the event loop."""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from uvicorn.server import ServerState

from plainsql_server.dev.certificates import Certificates, ensure_certificates
from plainsql_server.http.server.accepting import tls
from plainsql_server.http.server.accepting.handshakes import Handshakes
from plainsql_server.http.server.accepting.shared_reader import SharedReader
from server.tests.http.test_client_hello import client_hello
from server.tests.tenant_isolation.silent_flood import HALF

WITHIN_S = 30
MANY = 50


class Context(ssl.SSLContext):
    """Counts the TLS sessions that are started."""

    started = 0

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self.started += 1
        return super().wrap_bio(*arguments, **named)


@dataclass
class Listening:
    """A socket that accepts TLS connections."""

    port: int
    context: Context
    trust: ssl.SSLContext
    handshakes: Handshakes
    on_made: Callable[[], None] = field(default=lambda: None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname="localhost")


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._listening.on_made()

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Other:
    """Another handshake under way, which needs a place."""

    address = "192.0.2.1"

    def shutdown(self) -> None:
        raise AssertionError("It is the newest one.")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure_certificates(tmp_path_factory.mktemp("tls"))


@contextmanager
def accepting(files: Certificates, total: int = 10) -> Iterator[Listening]:
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert_file, files.key_file)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    trust = ssl.create_default_context(cafile=str(files.ca_file))
    listening = Listening(listener.getsockname()[1], context, trust, Handshakes(0, total))
    state = ServerState()
    accepts = tls.Accepting(listener, context, lambda: Echo(listening), state, listening.handshakes)
    accepts.start(backlog=2 * MANY)
    try:
        yield listening
    finally:
        accepts.close()
        for each in list(state.connections):
            each.shutdown()


@contextmanager
def iterations() -> Iterator[Counter[int]]:
    """Counts per turn of the event loop. The key 0 is the number of the current turn."""
    counted, loop, is_over = Counter[int](), asyncio.get_running_loop(), False

    def iterate() -> None:
        counted[0] += 1
        if not is_over:
            loop.call_soon(iterate)

    iterate()
    yield counted
    is_over = True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  # conditions have no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("sent", [b"", b"\x16", HALF, b"\x16\x03\x01\x00\x01\x01"], ids=["none", "1", "half", "short"])
async def test_tls_starts_when_the_first_message_is_complete(files: Certificates, sent: bytes) -> None:
    with accepting(files) as listening:
        _, silent = await asyncio.open_connection("127.0.0.1", listening.port)
        silent.write(sent)
        await silent.drain()
        # Comes after it, so the other one has been looked at.
        reader, writer = await listening.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert listening.context.started == 1
        assert listening.handshakes.load().under_way == 1
        silent.close()
        writer.close()


async def test_a_message_in_many_parts_and_records_starts_tls(files: Certificates) -> None:
    message = client_hello()[5:]
    with accepting(files) as listening:
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        await until(lambda: listening.handshakes.load().under_way == 1)
        for at, end in ((0, 1), (1, 3), (3, 200), (200, len(message))):
            for part in (b"\x16\x03\x01" + (end - at).to_bytes(2), message[at:end]):
                writer.write(part)
                # It is looked at before the next one comes.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        async with asyncio.timeout(WITHIN_S):
            assert await reader.readexactly(1) == b"\x16"
        writer.close()


async def test_a_client_with_plain_http_counts_once(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for the answer, also on a slow machine.
    monkeypatch.setattr(tls, "HANDSHAKE_TIMEOUT_S", 2.0)
    with accepting(files) as listening:
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"https_required" in await reader.read()
        # It does not close the connection, so the service does.
        await until(lambda: not listening.handshakes.load().under_way)
        assert listening.handshakes.failed == {"plain_http": 1}
        writer.close()


async def test_a_silent_client_counts_as_late(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_TIMEOUT_S", 0.2)
    with accepting(files) as listening:
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        # Reset, so nothing of it stays in the kernel.
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert listening.handshakes.failed == {"timeout": 1}
        writer.close()


async def test_a_silent_client_that_makes_way_is_reset(files: Certificates) -> None:
    with accepting(files, total=1) as listening:
        first, first_writer = await asyncio.open_connection("127.0.0.1", listening.port)
        _, second_writer = await asyncio.open_connection("127.0.0.1", listening.port)
        with pytest.raises(ConnectionResetError):
            await first.read()
        assert listening.handshakes.failed == {"process": 1}
        first_writer.close()
        second_writer.close()


async def test_a_connection_that_is_made_does_not_make_way(files: Certificates) -> None:
    with accepting(files, total=1) as listening:
        # In the same turn of the event loop in which the handshake is done.
        listening.on_made = lambda: listening.handshakes.begin(Other())
        reader, writer = await listening.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert not listening.handshakes.failed
        writer.close()


async def test_few_are_accepted_in_one_iteration(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    with accepting(files, total=MANY) as listening, ExitStack() as opened:
        with iterations() as counted:
            begin = listening.handshakes.begin

            def counting(handshake: tls.Handshake) -> None:
                counted[counted[0]] += 1
                begin(handshake)

            monkeypatch.setattr(listening.handshakes, "begin", counting)
            for _ in range(MANY):
                # Without a turn of the event loop in between.
                opened.enter_context(socket.create_connection(("127.0.0.1", listening.port)))
            await until(lambda: listening.handshakes.load().under_way == MANY)
        del counted[0]
        assert max(counted.values()) <= 8


class Watched:
    """A connection that notes in which turn it was looked at."""

    def __init__(self, connection: socket.socket, reader: SharedReader, ends_s: float, counted: Counter[int]) -> None:
        self.number = connection.fileno()
        self.ends_s = ends_s
        self._reader = reader
        self._counted = counted

    def on_readable(self) -> None:
        self._counted[self._counted[0]] += 1
        self._reader.remove(self)

    on_timeout = on_readable


@pytest.mark.parametrize("is_late", [True, False])
async def test_few_that_end_together_are_looked_at_in_one_iteration(is_late: bool) -> None:
    reader, now_s = SharedReader(), asyncio.get_running_loop().time()
    with iterations() as counted, ExitStack() as opened:
        for _ in range(MANY):
            client, server = socket.socketpair()
            opened.enter_context(client)
            opened.enter_context(server)
            reader.add(Watched(server, reader, now_s if is_late else now_s + 60, counted))
            if not is_late:
                client.send(b"x")
        await until(lambda: counted.total() - counted[0] == MANY)
        reader.close()
    del counted[0]
    assert max(counted.values()) <= 16


class Failing(Watched):
    """A connection whose end fails."""

    def on_timeout(self) -> None:
        super().on_timeout()
        raise ZeroDivisionError


async def test_a_connection_that_fails_leaves_the_others_their_timer() -> None:
    reader, loop, counted, failed = SharedReader(), asyncio.get_running_loop(), Counter[int](), list[object]()
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    with ExitStack() as opened:
        for kind in (Failing, Watched):
            client, server = socket.socketpair()
            opened.enter_context(client)
            opened.enter_context(server)
            reader.add(kind(server, reader, loop.time(), counted))
        await until(lambda: counted.total() == 2)
        reader.close()
    assert [type(each) for each in failed] == [ZeroDivisionError]


async def test_a_connection_that_the_system_does_not_watch_is_closed(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with accepting(files) as listening:
        # The real limit is the machine's, fs.epoll.max_user_watches.
        monkeypatch.setattr(SharedReader, "add", refuse)
        with socket.create_connection(("127.0.0.1", listening.port)) as client:
            await until(lambda: bool(listening.handshakes.failed))
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert listening.handshakes.failed == {"descriptors": 1}
        assert not listening.handshakes.load().under_way
