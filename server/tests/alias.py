"""The alias for tests: a real nginx with the configuration that operators get, before whatever the test chooses.

Owns starting and stopping it, and a stand-in for a data plane that shows what nginx sends on and when it passes
answers back.
"""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plainsql_server.dev.alias import find_nginx, nginx_command, write_config
from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.alias import Alias
from server.tests.programs import need

CONTROL_URL = "https://control.example"
_START_LIMIT_S = 60.0


def found_nginx() -> str:
    """The path of nginx, which may be outside of an ordinary user's PATH."""
    program = find_nginx()
    if program is None:
        need("nginx")
    return str(program)


@contextmanager
def running_alias(*upstream_ports: int, instead: Mapping[str, str] | None = None) -> Iterator[int]:
    """The port of an alias of these data planes, over plain HTTP; with other words `instead` of some of its own."""
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="plainsql-alias-"))
    try:
        upstreams = [f"127.0.0.1:{each}" for each in upstream_ports]
        write_config(folder, Alias([f"127.0.0.1:{port}"], upstreams, CONTROL_URL))
        for words, others in (instead or {}).items():
            _replace(folder, words, others)
        with running_nginx(folder, port):
            yield port
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_nginx(folder: Path, port: int) -> Iterator[None]:
    """An nginx with the configuration in this folder, which listens on this port."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(nginx_command(found_nginx(), folder), stderr=log)
    try:
        _wait_until_it_listens(port, process, folder / "log")
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that neither takes a connection nor refuses it, as on a machine that has vanished: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def _replace(folder: Path, words: str, others: str) -> None:
    (file,) = [file for file in folder.glob("*.conf") if words in file.read_text()]
    file.write_text(file.read_text().replace(words, others))


def _wait_until_it_listens(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end_s = time.monotonic() + _START_LIMIT_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end_s, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)


@dataclass
class Upstream:
    """What a stand-in for a data plane saw."""

    port: int = 0
    connections: int = 0
    request_heads: list[bytes] = field(default_factory=list)
    # Of a stand-in that waits for permission: one for each chunk that it may send.
    wanted: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))


@asynccontextmanager
async def streaming_upstream(chunks: int) -> AsyncIterator[Upstream]:
    """Answers each request with a stream of so many pieces, each made only when it is wanted."""
    seen = Upstream()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                seen.request_heads.append(await reader.readuntil(b"\r\n\r\n"))
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                writer.write(head)
                for number in range(chunks):
                    await seen.wanted.acquire()
                    chunk = b"event: row\ndata: %d\n\n" % number
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        # Its connections end when nginx is gone, which the block's own end sees to.
        await asyncio.sleep(0.1)
