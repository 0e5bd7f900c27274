"""Bodies that come in pieces: who withholds the rest gains nothing by it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.tests.end_to_end.control import answer, new_key
from server.tests.load import STALL_S, Node, running_node
from server.tests.service import Service

BODY_TIMEOUT_S = 2.0
BODY = b'{"sql": "select 1 as one"}'
# What a key's revocation takes to reach every node.
ENDED_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, body_timeout_ms=int(BODY_TIMEOUT_S * 1000)) as running:
        yield running


class Parked:
    """A query whose head and first half are sent, and whose rest is not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = rest

    def send_the_rest(self) -> None:
        self._writer.write(self._rest)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(20):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split(b" ")[1]), json.loads(await self._reader.readexactly(length))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(20):
            return await self._reader.read() == b""


@asynccontextmanager
async def parked(node: Node, key: str, how: str) -> AsyncIterator[Parked]:
    half = len(BODY) // 2
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    head = f"POST /v1/query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
    if how == "in chunks":
        sent = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (half, BODY[:half])
        rest = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY) - half, BODY[half:])
    else:
        sent, rest = b"content-length: 100000\r\n\r\n" + BODY[:half], BODY[half:].ljust(100_000 - half)
    writer.write(head.encode() + sent)
    try:
        yield Parked(reader, writer, rest)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["in chunks", "with a large length"])
async def test_a_late_body_is_answered(service: Service, node: Node, how: str) -> None:
    async with parked(node, service.api_key, how) as request:
        request.send_the_rest()
        status, body = await request.answer()
    assert (status, body.get("rows")) == (200, [{"one": 1}])


@pytest.mark.parametrize("how", ["in chunks", "with a large length"])
async def test_a_key_revoked_before_the_body_is_complete_is_rejected(service: Service, node: Node, how: str) -> None:
    key = await asyncio.to_thread(new_key, service, "read")
    async with parked(node, key["secret"], how) as request, node.client(key["secret"]) as other:
        # The head was taken before, on another connection of the same process.
        assert (await other.query("select 1")).succeeded
        await asyncio.to_thread(answer, service, "DELETE", f"/v1/keys/{key['id']}", status=204)
        async with asyncio.timeout(ENDED_WITHIN_S):
            while (await other.query("select 1")).status != 401:
                pass
        request.send_the_rest()
        status, body = await request.answer()
    assert (status, body["error"]["code"]) == (401, "unauthenticated")


async def test_a_body_that_never_arrives_times_out(service: Service, hasty: Node) -> None:
    await asyncio.gather(*(check_timeout(service, hasty, how) for how in ("in chunks", "with a large length")))


async def check_timeout(service: Service, hasty: Node, how: str) -> None:
    began_s = time.monotonic()
    async with parked(hasty, service.api_key, how) as request:
        status, body = await request.answer()
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert BODY_TIMEOUT_S - 0.1 <= time.monotonic() - began_s <= BODY_TIMEOUT_S + 3 + STALL_S
        assert await request.is_closed()
