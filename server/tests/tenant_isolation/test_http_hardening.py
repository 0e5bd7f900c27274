"""Clients that keep a process waiting, or take its connections: for how long, and how many."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from plainsql_server.assembly import safety_headers
from plainsql_server.settings import Settings
from server.tests.load import STALL_S, Node, running_node
from server.tests.service import Service

REQUEST_TIMEOUT_S = 1.0
TOTAL = 12
PER_ADDRESS = 8
# The watch looks every second.
SLACK_S = 2.5


@pytest.fixture(scope="module")
def hasty(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, body_timeout_ms=int(REQUEST_TIMEOUT_S * 1000)) as running:
        yield running


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(node: Node, host: str = "127.0.0.1") -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(host, node.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def everything(reader: asyncio.StreamReader) -> bytes:
    """What comes until the service closes the connection."""
    async with asyncio.timeout(20):
        return await reader.read()


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.lower().count(b"connection: close") == 1
    return int(head.split(b" ")[1]), json.loads(body)["error"]


BEGINNINGS = {
    "one byte": b"P",
    "half a head": b"POST /v1/query HTTP/1.1\r\nhost: x\r\n",
    "no body": b"POST /v1/query HTTP/1.1\r\nhost: x\r\ncontent-length: 30\r\n\r\n",
    "half a small body": b"POST /v1/query HTTP/1.1\r\nhost: x\r\ncontent-length: 30\r\n\r\n{",
}


async def test_an_incomplete_request_times_out(hasty: Node) -> None:
    # All at once, because each is only waited for.
    await asyncio.gather(*(check_timeout(hasty, *each) for each in BEGINNINGS.items()))


async def check_timeout(hasty: Node, name: str, beginning: bytes) -> None:
    async with connected(hasty) as (reader, writer):
        writer.write(beginning)
        began_s = time.monotonic()
        answer = await everything(reader)
    took_s = time.monotonic() - began_s
    status, error = error_of(answer[answer.rindex(b"HTTP/1.1 ") :])
    assert (status, error["code"], error["outcome"]) == (408, "request_timeout", "not_executed"), name
    assert REQUEST_TIMEOUT_S - 0.1 <= took_s <= REQUEST_TIMEOUT_S + SLACK_S + STALL_S, name


async def test_a_request_head_sent_byte_by_byte_times_out(hasty: Node) -> None:
    async with connected(hasty) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        began_s = time.monotonic()
        while not reader.at_eof() and time.monotonic() - began_s < 60:
            writer.write(b"x-more: y\r\n")
            try:
                async with asyncio.timeout(0.1):
                    await reader.read(1)
                    break
            except TimeoutError:
                continue
    assert time.monotonic() - began_s <= REQUEST_TIMEOUT_S + SLACK_S + STALL_S


async def test_requests_that_arrive_in_time_are_answered_however_old_the_connection(
    service: Service, hasty: Node
) -> None:
    async with hasty.client(service.api_key) as client:
        for _ in range(4):
            assert (await client.query("select pg_sleep(0.6)")).succeeded


async def test_a_running_statement_is_not_taken_for_an_incomplete_request(service: Service, hasty: Node) -> None:
    async with hasty.client(service.api_key) as client:
        assert (await client.query("select pg_sleep(3)")).succeeded


@pytest.mark.parametrize("what", ["process", "address"])
async def test_connections_beyond_the_cap_are_rejected_and_others_continue(service: Service, what: str) -> None:
    settings = {"max_connections": TOTAL, "address_connections": 0 if what == "process" else PER_ADDRESS}
    cap = TOTAL if what == "process" else PER_ADDRESS
    with running_node(service.directory_dsn, **settings) as node:
        async with AsyncExitStack() as stack:
            inside = [await stack.enter_async_context(connected(node)) for _ in range(cap)]
            # Each is known to the service once it has answered on it.
            for reader, writer in inside:
                writer.write(b"GET /health?live HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            reader, _ = await stack.enter_async_context(connected(node))
            answer = await everything(reader)
            status, error = error_of(answer)
            assert (status, error["code"], error["retryable"]) == (503, "connection_limit", True)
            assert b"retry-after: 1" in answer.lower()
            if what == "address":
                # Another address of this machine's is not meant.
                other, writer = await stack.enter_async_context(connected_from("127.0.0.2", node))
                writer.write(b"GET /health?live HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b" 200 " in await other.readuntil(b"\r\n\r\n")
            inside[0][1].write(b"GET /health?live HTTP/1.1\r\nhost: x\r\n\r\n")
            await inside[0][0].readuntil(b"}")
        async with asyncio.timeout(30), node.client(service.api_key) as client:
            while not (await client.query("select 1")).succeeded:
                pass


@asynccontextmanager
async def connected_from(address: str, node: Node) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/health"), ("GET", "/nowhere"), ("POST", "/v1/query"), ("PUT", "/query")],
)
def test_every_answer_forbids_sniffing_and_framing(service: Service, method: str, path: str) -> None:
    headers = service.call(method, path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_browsers_are_bound_to_https_unless_the_host_is_localhost(service: Service) -> None:
    """For localhost, they would no longer open http://localhost of any other program."""
    assert "strict-transport-security" not in service.call("GET", "/").headers
    for url, is_sent in (("https://db.example", True), ("", True), ("https://localhost:8400", False)):
        settings = Settings(directory_dsn="", data_url=url, tls_cert_file="server.pem")
        assert ("strict-transport-security" in dict(safety_headers(settings))) is is_sent
    assert "strict-transport-security" not in dict(
        safety_headers(Settings(directory_dsn="", data_url="http://db.example"))
    )


def test_streams_have_the_security_headers_too(service: Service) -> None:
    response = service.call("POST", "/v1/query", json={"sql": "/*+ STREAM */ select 1"})
    assert response.headers["x-content-type-options"] == "nosniff"
