"""What streams take of a process' memory, whatever their rows are and whether anybody reads them."""

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from server.tests.end_to_end.tenants import free_key
from server.tests.end_to_end.test_overload import watched_memory
from server.tests.events import StreamClient
from server.tests.load import Node, running_node
from server.tests.service import Service

MIB = 1024 * 1024
# In JSON each of these characters takes six: the row is just below the limit of the tier free.
ONE_LARGE_ROW = "select repeat(E'\\x01', 1700000) as text"
GROWING = "select case when n <= 5000 then 'x' else repeat('y', 1000000) end as text from generate_series(1, 5060) n"


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, stream_stall_ms=60_000) as running:
        yield running


def stalled_over_tls(service: Service, key: str) -> socket.socket:
    """A client that asks for a large row by TLS and reads none of it."""
    address = urlsplit(service.data_url)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((address.hostname, address.port))
    context = ssl.create_default_context(cafile=service.dev["ca_file"])
    connection = context.wrap_socket(plain, server_hostname=address.hostname)
    body = json.dumps({"sql": ONE_LARGE_ROW}).encode()
    head = f"POST /v1/query HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\naccept: text/event-stream\r\n"
    connection.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def resident_bytes(pid: int) -> int:
    """Of a process and those that it started."""
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 + sum(resident_bytes(int(each)) for each in started)


def settled(look: Callable[[], int]) -> int:
    """The most that is seen until nothing has grown for a while."""
    most, grew_s = look(), time.monotonic()
    while time.monotonic() - grew_s < 2:
        time.sleep(0.02)
        if (seen := look()) > most + MIB:
            most, grew_s = seen, time.monotonic()
    return most


def test_large_rows_are_not_produced_ahead_of_a_stalled_tls_reader(service: Service) -> None:
    pid = service.dev["pids"]["data"]
    with ExitStack() as stack:
        before_bytes = resident_bytes(pid)
        for _ in range(16):
            stack.enter_context(stalled_over_tls(service, free_key(service)))
        grown = settled(lambda: resident_bytes(pid)) - before_bytes
    print(f"16 clients that do not read 10 MB rows by TLS: memory +{grown / MIB:.0f} MiB")
    assert grown <= 100 * MIB


async def test_rows_that_become_large_take_little_memory_and_all_arrive(service: Service, node: Node) -> None:
    key = free_key(service)
    async with StreamClient(node.port, key) as client:
        await client.send("select 1")
        await client.read_head()
        await client.last_event()
    with watched_memory(node) as seen:
        async with StreamClient(node.port, key, receive_bytes=65536) as client:
            await client.send(GROWING)
            await client.read_head()
            end = await client.last_event()
    print(f"rows that become large: memory +{(max(seen) - seen[0]) / MIB:.0f} MiB")
    assert end is not None
    assert (end.type, end.content.get("row_count")) == ("done", 5060)
    assert max(seen) - seen[0] <= 40 * MIB


async def test_a_row_that_is_too_large_as_json_is_refused(service: Service, node: Node) -> None:
    async with StreamClient(node.port, free_key(service)) as client:
        await client.send("select repeat(E'\\x01', 2000000) as text")
        await client.read_head()
        assert client.headers["content-type"] == "application/json"
        assert (await client.json_body())["error"]["code"] == "result_too_large"
