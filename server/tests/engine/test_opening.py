"""Connections to a cell over TLS: the handshake runs beside the event loop, and nothing frees what it works on.

libpq reads the certificate of the authority from a FIFO here. So a step of the handshake takes as long as the test
wants, and a loop that had to wait for it could not end it.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from plainsql_server.core.errors import EngineError
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import run_command
from plainsql_server.engine.connection.opening import CONNECTING_TIMED_OUT
from server.tests.postgres import SUPERUSER
from server.tests.tls_cell import TlsCell, running_tls_cell

# Only a loop that is held up takes so long.
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCell]:
    with running_tls_cell(tmp_path_factory.mktemp("tls")) as running:
        yield running


class SlowFile:
    """A FIFO with a certificate, for the one that reads it when it is fed."""

    def __init__(self, path: Path, content: bytes) -> None:
        os.mkfifo(path)
        self._path = path
        self._content = content
        self._writer = -1
        self._is_fed = False

    async def has_reader(self) -> None:
        """Waits until libpq has opened it, and waits for its content."""
        while self._writer < 0:
            try:
                self._writer = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                await asyncio.sleep(0.001)

    def feed(self) -> None:
        if self._writer >= 0 and not self._is_fed:
            os.write(self._writer, self._content)
            os.close(self._writer)
            self._is_fed = True


@contextmanager
def slow_handshake(cell: TlsCell, tmp_path: Path) -> Iterator[tuple[bytes, SlowFile]]:
    """A conninfo, and the file that its handshake waits for."""
    file = SlowFile(tmp_path / "ca.pem", (cell.folder / "ca.pem").read_bytes())
    conninfo = cell.conninfo("admin").replace(f"{cell.folder}/ca.pem", f"{tmp_path}/ca.pem")
    # Ends the wait of a loop that is held up, so that the test fails and does not hang. No thread could: libpq would
    # hold the interpreter's lock.
    command = f"sleep {LIMIT_S} && cat {cell.folder}/ca.pem > {tmp_path}/ca.pem"
    late = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    try:
        yield f"{conninfo} user={SUPERUSER} dbname=postgres".encode(), file
    finally:
        # Unless it was late, a group is still there: the shell's, with its `sleep`.
        with suppress(ProcessLookupError):
            os.killpg(late.pid, signal.SIGKILL)
        late.wait()
        file.feed()


async def test_the_loop_runs_while_libpq_shakes_hands(cell: TlsCell, tmp_path: Path) -> None:
    with slow_handshake(cell, tmp_path) as (conninfo, file):
        opening = asyncio.create_task(Connection.open(conninfo, 2 * LIMIT_S))
        async with asyncio.timeout(LIMIT_S / 2):
            await file.has_reader()
        assert not opening.done()
        file.feed()
        connection = await opening
    assert connection.pgconn.ssl_in_use
    await run_command(connection, b"select 1")
    connection.close()


async def test_a_cancelled_opening_ends_when_libpq_no_longer_works_on_it(cell: TlsCell, tmp_path: Path) -> None:
    with slow_handshake(cell, tmp_path) as (conninfo, file):
        opening = asyncio.create_task(Connection.open(conninfo, 2 * LIMIT_S))
        await file.has_reader()
        for _ in range(3):
            opening.cancel()
            await asyncio.sleep(0.01)
            assert not opening.done(), "it was closed in the middle of its handshake"
        file.feed()
        with pytest.raises(asyncio.CancelledError):
            await opening


async def test_an_opening_that_takes_too_long_says_so(cell: TlsCell, tmp_path: Path) -> None:
    with slow_handshake(cell, tmp_path) as (conninfo, file):
        opening = asyncio.create_task(Connection.open(conninfo, 0.2))
        await file.has_reader()
        await asyncio.sleep(0.3)
        file.feed()
        with pytest.raises(EngineError) as raised:
            await opening
    assert raised.value.internal_context == CONNECTING_TIMED_OUT


class DrippingServer:
    """A server that sends its part of the handshake byte by byte, so that a thread always finds something to read."""

    def __init__(self) -> None:
        self.has_sent = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"S")
        await reader.read(1)
        # A handshake record of 16 kB, which takes longer than any test.
        writer.write(b"\x16\x03\x03\x40\x00")
        ended = asyncio.create_task(self._read_all(reader))
        while not ended.done():
            writer.write(b"\x02")
            self.has_sent.set()
            await asyncio.wait([ended], timeout=0.002)
        writer.close()
        self.has_ended.set()

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


def open_sockets() -> set[str]:
    links = Path("/proc/self/fd")
    found = set()
    for each in os.listdir(links):
        with suppress(FileNotFoundError):
            found.add(os.readlink(links / each))
    return {each for each in found if each.startswith("socket:")}


async def held_up_by(opening: asyncio.Task[Connection]) -> asyncio.Future[int]:
    """Something for the only thread to do, which has to wait because it is in the handshake.

    If the server has sent nothing for some time, because the machine is busy, the thread has a pause.
    """
    while True:
        waiting = asyncio.get_running_loop().run_in_executor(None, os.getpid)
        await asyncio.wait([waiting], timeout=0.1)
        if not waiting.done():
            return waiting
        assert not opening.done(), "the thread was never in the handshake"


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_handshake_that_is_given_up_leaves_no_socket_and_no_busy_thread(
    cell: TlsCell, is_cancelled: bool
) -> None:
    loop, dripping = asyncio.get_running_loop(), DrippingServer()
    loop.set_default_executor(ThreadPoolExecutor(1))
    server = await asyncio.start_server(dripping.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    conninfo = f"{cell.conninfo('admin')} user={SUPERUSER} dbname=postgres"
    elsewhere = conninfo.replace(f"port={cell.port}", f"port={port} hostaddr=127.0.0.1").encode()
    before = open_sockets()
    opening = asyncio.create_task(Connection.open(elsewhere, 3 * LIMIT_S if is_cancelled else 2.0))
    await asyncio.wait_for(dripping.has_sent.wait(), LIMIT_S)
    held_up = await held_up_by(opening)
    if is_cancelled:
        opening.cancel()
    await asyncio.wait([opening], timeout=LIMIT_S)
    assert opening.done(), "the thread goes on with the handshake"
    await asyncio.wait_for(held_up, LIMIT_S)
    if is_cancelled:
        assert opening.cancelled()
    else:
        error = opening.exception()
        assert isinstance(error, EngineError)
        assert error.internal_context == CONNECTING_TIMED_OUT
    # The server sees the end of the connection.
    await asyncio.wait_for(dripping.has_ended.wait(), LIMIT_S)
    server.close()
    await server.wait_closed()
    assert open_sockets() <= before
    (await Connection.open(conninfo.encode(), LIMIT_S)).close()


async def test_many_connections_are_opened_at_once(cell: TlsCell) -> None:
    conninfo = f"{cell.conninfo('admin')} user={SUPERUSER} dbname=postgres".encode()
    connections = await asyncio.gather(*(Connection.open(conninfo, LIMIT_S) for _ in range(20)))
    assert len({connection.backend_pid for connection in connections}) == 20
    for connection in connections:
        connection.close()


async def test_a_refused_certificate_is_reported(cell: TlsCell) -> None:
    conninfo = f"{cell.conninfo('outsider')} user={SUPERUSER} dbname=postgres".encode()
    with pytest.raises(EngineError) as raised:
        await Connection.open(conninfo, LIMIT_S)
    assert "unknown ca" in (raised.value.internal_context or "")


async def test_servers_that_fall_silent_hold_up_no_other_opening(cell: TlsCell) -> None:
    async def fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        # It knows TLS, and then takes no part in the handshake.
        writer.write(b"S")
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(fall_silent, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    conninfo = f"{cell.conninfo('admin')} user={SUPERUSER} dbname=postgres"
    # More than there are threads.
    elsewhere = conninfo.replace(f"port={cell.port}", f"port={port} hostaddr=127.0.0.1").encode()
    stuck = [asyncio.create_task(Connection.open(elsewhere, 3 * LIMIT_S)) for _ in range(60)]
    (await Connection.open(conninfo.encode(), LIMIT_S)).close()
    assert not any(each.done() for each in stuck)
    for each in stuck:
        each.cancel()
    await asyncio.wait(stuck, timeout=LIMIT_S)
    assert all(each.cancelled() for each in stuck)
    silent.close()
    await silent.wait_closed()
