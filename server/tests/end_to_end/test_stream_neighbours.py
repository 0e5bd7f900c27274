"""Clients that read slowly or not at all, and who must not notice them: other requests, other tenants, the memory.

`PLAINSQL_TEST_STALLED=100`, `PLAINSQL_TEST_SLOW_SENDERS=200` and `PLAINSQL_TEST_NEIGHBOUR_S=10` are the full sizes.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from server.tests.end_to_end.tenants import free_key
from server.tests.end_to_end.test_overload import watched_memory
from server.tests.events import StreamClient
from server.tests.load import Node, percentile, running_node, size
from server.tests.service import Service

pytestmark = pytest.mark.timing

STALLED = size("PLAINSQL_TEST_STALLED", 30)
SLOW_SENDERS = size("PLAINSQL_TEST_SLOW_SENDERS", 40)
SECONDS = size("PLAINSQL_TEST_NEIGHBOUR_S", 2)
TOLERANCE = 1 if STALLED >= 100 else 2
# The pool and the tier let fewer stream at once than ask for it.
STREAMS_AT_LEAST = 2
MIB = 1024 * 1024
ENDLESS = "select a.n, repeat('x', 1000) as text from generate_series(1, 10000) a(n), generate_series(1, 10000) b(n)"


@pytest.fixture
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, stream_stall_ms=60_000) as running:
        yield running


async def stalled_streams(stack: AsyncExitStack, node: Node, key: str, count: int) -> list[StreamClient]:
    """Clients that ask for an endless stream and read nothing."""
    clients = [await stack.enter_async_context(StreamClient(node.port, key, receive_bytes=1024)) for _ in range(count)]
    for client in clients:
        await client.send(ENDLESS)
    return clients


async def streams_given(clients: list[StreamClient]) -> int:
    """How many of them were answered with a stream; the others were refused, or still wait for a turn."""
    waiting = {asyncio.create_task(client.read_head()) for client in clients}
    end_s = time.monotonic() + 30
    while waiting and sum(client.status == 200 for client in clients) < STREAMS_AT_LEAST and time.monotonic() < end_s:
        answered, waiting = await asyncio.wait(waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*answered)
    for task in waiting:
        task.cancel()
    return sum(client.status == 200 for client in clients)


def slow_senders(stack: AsyncExitStack, node: Node, key: str, count: int) -> None:
    """Clients that have sent the beginning of a request and never send its end, each fourth in another way."""
    authorized = f"authorization: Bearer {key}\r\n".encode()
    json_follows = b"content-type: application/json\r\n"
    beginnings = (
        b"",
        json_follows + b"content-length: 50000\r\n\r\n{" + b" " * 20_000,
        authorized + json_follows + b"content-length: 50000\r\n\r\n{" + b" " * 20_000,
        authorized + json_follows + b"transfer-encoding: chunked\r\n\r\n5000\r\n{" + b" " * 20_000,
    )
    for number in range(count):
        sender = socket.create_connection(("127.0.0.1", node.port))
        stack.callback(sender.close)
        sender.sendall(b"POST /v1/query HTTP/1.1\r\nhost: x\r\n" + beginnings[number % 4])


async def healthy_p99_s(node: Node, key: str) -> float:
    took_s: list[float] = []
    until_s = time.monotonic() + SECONDS

    async def load() -> None:
        async with node.client(key) as client:
            while time.monotonic() < until_s:
                answer = await client.query("select 1 as n")
                assert answer.succeeded, answer
                took_s.append(answer.elapsed_s)

    await asyncio.gather(*(load() for _ in range(4)))
    return percentile(took_s, 99)


@pytest.mark.parametrize("whose", ["the same key", "another organization"])
async def test_clients_that_neither_read_nor_send_do_not_affect_others(
    service: Service, node: Node, whose: str
) -> None:
    stalled_key = service.api_key if whose == "the same key" else free_key(service)
    alone_s = await healthy_p99_s(node, service.api_key)
    async with AsyncExitStack() as stack:
        # The last to run: the loop closes the sockets at its next turn.
        stack.push_async_callback(asyncio.sleep, 0)
        with watched_memory(node) as seen:
            stalled = await stalled_streams(stack, node, stalled_key, STALLED)
            slow_senders(stack, node, stalled_key, SLOW_SENDERS)
            beside_s = await healthy_p99_s(node, service.api_key)
            given = await streams_given(stalled)
    grown = max(seen) - seen[0]
    print(
        f"{whose}: {given} of {STALLED} stalled clients had a stream,"
        f" p99 {alone_s * 1000:.1f} -> {beside_s * 1000:.1f} ms, memory +{grown / MIB:.0f} MiB"
    )
    assert given >= STREAMS_AT_LEAST
    assert grown <= 100 * MIB
    # Other tests share the machine with the short form.
    assert beside_s <= max(2 * TOLERANCE * alone_s, 0.005 if TOLERANCE == 1 else 0.5)
