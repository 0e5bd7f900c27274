"""Answers that nobody reads: their clients are dropped and the memory comes back, on each way that an answer leaves.

`PLAINSQL_TEST_UNREAD=100` is the full size.
"""

import asyncio
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from server.tests.load import STALL_S, Node, running_node, size
from server.tests.service import Service

pytestmark = pytest.mark.timing

UNREAD = size("PLAINSQL_TEST_UNREAD", 16)
PAUSE_S = 1.0
MIB = 1024 * 1024
ANSWER_BYTES = 5 * MIB
SQL = f"select repeat('x', {ANSWER_BYTES}) as text"


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, stream_stall_ms=int(PAUSE_S * 1000)) as running:
        # The first wave leaves what is kept on purpose: connections to the engine with the buffers of such an answer.
        unread_wave(running, service.api_key, "and kept alive")
        yield running


def asked(node: Node, key: str, how: str) -> socket.socket:
    """A connection with a small window, over which a large answer was asked for."""
    body = json.dumps({"sql": SQL}).encode()
    head = f"POST /v1/query HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    if how == "to a chunked request":
        rest = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        closing = "connection: close\r\n" if how == "before closing" else ""
        rest = f"{closing}content-length: {len(body)}\r\n\r\n".encode() + body
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", node.port))
    connection.sendall(head.encode() + rest)
    return connection


def wait_until_answered(connection: socket.socket) -> None:
    assert select.select([connection], [], [], 30)[0]


def wait_until_dropped(connection: socket.socket) -> None:
    """Waits for the reset without reading anything."""
    watch = select.poll()
    watch.register(connection, select.POLLERR)
    assert watch.poll(20_000), "it is still there"


def most_memory(node: Node, wanted_bytes: int) -> int:
    """The resident memory, once it is as much as that or the first clients may be dropped."""
    end_s = time.monotonic() + PAUSE_S / 2
    while (now_bytes := node.resident_bytes()) < wanted_bytes and time.monotonic() < end_s:
        time.sleep(0.02)
    return now_bytes


def wait_for_memory(node: Node, wanted_bytes: int) -> int:
    """The resident memory, once it is as little as that or some seconds have passed."""
    end_s = time.monotonic() + 2
    while (now_bytes := node.resident_bytes()) > wanted_bytes and time.monotonic() < end_s:
        time.sleep(0.02)
    return now_bytes


def unread_wave(node: Node, key: str, how: str, idle_bytes: int = 0) -> tuple[int, int, float]:
    """Clients that do not read, until all are dropped: the memory held and left above what was idle, the seconds."""
    with ExitStack() as stack:
        clients = [stack.enter_context(asked(node, key, how)) for _ in range(UNREAD)]
        for client in clients:
            wait_until_answered(client)
        answered_s = time.monotonic()
        # The first bytes of an answer are here before the rest is in the process' memory.
        held_bytes = most_memory(node, idle_bytes + UNREAD * ANSWER_BYTES // 2) - idle_bytes
        for client in clients:
            wait_until_dropped(client)
        took_s = time.monotonic() - answered_s
        # The clients are still there, so that nothing else frees it.
        left_bytes = wait_for_memory(node, idle_bytes + held_bytes // 3) - idle_bytes
    return held_bytes, left_bytes, took_s


@pytest.mark.parametrize("how", ["and kept alive", "before closing", "to a chunked request"])
def test_a_client_that_does_not_read_is_disconnected_and_its_memory_freed(
    service: Service, node: Node, how: str
) -> None:
    idle_bytes = wait_for_memory(node, 0)
    held_bytes, left_bytes, took_s = unread_wave(node, service.api_key, how, idle_bytes)
    print(f"{how}: held {held_bytes / MIB:.0f} MiB, left {left_bytes / MIB:.0f} MiB, dropped after {took_s:.1f} s")
    # Of many, the first are dropped while the last are still being made. And what was idle may have held a remainder of
    # the first wave: what came back was held for certain.
    assert held_bytes - left_bytes > min(UNREAD / 8, 12) * ANSWER_BYTES
    # The allocator keeps some of it for the next answer.
    assert left_bytes <= held_bytes / 2
    assert took_s <= 2 * PAUSE_S + 3 + STALL_S


async def test_a_slow_reader_gets_the_whole_answer(service: Service, node: Node) -> None:
    """Twice as slow as the limit, but steadily."""
    with asked(node, service.api_key, "and kept alive") as connection:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        received, began_s = b"", time.monotonic()
        while len(received) < ANSWER_BYTES:
            chunk = await loop.sock_recv(connection, 1 << 16)
            assert chunk
            received += chunk
            await asyncio.sleep(max(0.0, 2 * PAUSE_S * len(received) / ANSWER_BYTES - (time.monotonic() - began_s)))
    assert time.monotonic() - began_s > 1.5 * PAUSE_S
