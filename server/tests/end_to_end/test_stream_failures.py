"""Streams that fail before their end: no client gets a false `done`, and nothing is left behind.

`PLAINSQL_TEST_STREAM_KILLS=50` is the full size.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from server.tests.cell import Cell, running_cell
from server.tests.events import BrokenOff, Event, StreamClient
from server.tests.load import STALL_S, Activity, Node, new_tag, running_node, size
from server.tests.service import Service

KILLS = size("PLAINSQL_TEST_STREAM_KILLS", 5)
# The short form runs beside other tests on the same cores.
GONE_WITHIN_S = 2.0
# An engine takes some seconds to recover.
CRASHES = KILLS if KILLS >= 50 else 1
ENDLESS = "select a.n, repeat('x', 100) as text from generate_series(1, 10000) a(n), generate_series(1, 10000) b(n)"
SLOW = "select n, pg_sleep(0.01) from generate_series(1, 100000) n"


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    with running_cell() as running:
        yield running


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, stream_stall_ms=700) as running:
        yield running


async def read_some(client: StreamClient, rows: int = 20) -> None:
    await client.read_head()
    count = 0
    async for event in client.events():
        count += event.type == "row"
        if count >= rows:
            return


@pytest.mark.parametrize("sql", [ENDLESS, SLOW])
async def test_a_disconnected_client_leaves_nothing_behind(service: Service, node: Node, sql: str) -> None:
    gone_s = []
    async with Activity.of(service) as activity:
        for _ in range(KILLS):
            tag = new_tag()
            async with StreamClient(node.port, service.api_key) as client:
                await client.send(f"{sql} -- {tag}")
                await read_some(client)
            gone_s.append(await _backends_gone(activity))
    print(f"clients gone: max {max(gone_s):.2f} s")
    assert max(gone_s) <= GONE_WITHIN_S / 2 + STALL_S


async def test_a_killed_backend_ends_its_stream_with_an_error(service: Service, node: Node) -> None:
    ends: list[Event | None] = []
    gone_s = []
    async with Activity.of(service) as activity:
        for _ in range(KILLS):
            async with StreamClient(node.port, service.api_key) as client:
                await client.send(SLOW)
                await read_some(client, 3)
                (pid,) = await _streaming_pids(activity)
                os.kill(pid, signal.SIGTERM)
                killed_s = time.monotonic()
                ends.append(await client.last_event())
            await _backends_gone(activity)
            gone_s.append(time.monotonic() - killed_s)
    print(f"backends killed: nothing left after {max(gone_s):.2f} s at the most")
    assert max(gone_s) <= GONE_WITHIN_S + STALL_S
    assert {end.type for end in ends if end is not None} == {"error"}
    assert {end.content["code"] for end in ends if end is not None} <= {"engine_unavailable", "connection_lost"}


async def test_a_crash_of_postgresql_never_looks_like_the_end_of_a_stream(cell: Cell) -> None:
    recovered_s = []
    with running_node(cell.directory_dsn, cell_max_connections=32) as node:
        for _ in range(CRASHES):
            clients = [StreamClient(node.port, cell.key) for _ in range(4)]
            for number, client in enumerate(clients):
                await client.__aenter__()
                await client.send(ENDLESS if number % 2 else SLOW)
                await read_some(client, 3)
            cell.kill()
            ends = await asyncio.gather(*(client.last_event() for client in clients))
            for client in clients:
                client.drop()
            cell.start()
            started_s = time.monotonic()
            assert all(end is None or end.type == "error" for end in ends), ends
            await _recovered(cell, node)
            recovered_s.append(time.monotonic() - started_s)
    print(f"{CRASHES} crashes: well again {max(recovered_s):.2f} s after the engine at the most")
    assert max(recovered_s) <= GONE_WITHIN_S + 2 * STALL_S


async def _recovered(cell: Cell, node: Node) -> None:
    """Waits until no stream runs on the engine that was started again, and the node calls itself well."""
    async with await psycopg.AsyncConnection.connect(cell.directory_dsn, autocommit=True) as connection:
        await _backends_gone(Activity(connection))
    async with asyncio.timeout(30):
        while (await asyncio.to_thread(node.health)).json()["status"] != "ok":  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.02)


async def test_a_client_that_does_not_read_is_disconnected(service: Service, node: Node) -> None:
    async with Activity.of(service) as activity, StreamClient(node.port, service.api_key, receive_bytes=1024) as client:
        await client.send(ENDLESS)
        await client.read_head()
        began_s = time.monotonic()
        assert await _backends_gone(activity) <= 0.7 + GONE_WITHIN_S + STALL_S
        with pytest.raises(BrokenOff):
            async for _ in client.chunks():
                pass
        assert time.monotonic() - began_s < 10 + STALL_S
    line = await _logged(node, "client_stalled")
    assert line["row_count"] > 0
    # Little is made for a client that reads none of it: what fits the kernel's buffer and ours.
    assert 0 < line["sent_bytes"] < 512 * 1024


async def test_a_stream_running_at_shutdown_ends_with_an_error(service: Service) -> None:
    with running_node(service.directory_dsn, drain_ms=100) as stopping:
        async with Activity.of(service) as activity, StreamClient(stopping.port, service.api_key) as client:
            await client.send(SLOW)
            await read_some(client, 3)
            stopping.process.send_signal(signal.SIGTERM)
            end = await client.last_event()
            assert end is not None
            assert (end.type, end.content["code"]) == ("error", "shutting_down")
            await _backends_gone(activity)
        assert await asyncio.to_thread(stopping.process.wait, 10) in (0, -signal.SIGTERM)


async def test_the_deadline_ends_a_stream_whose_client_does_not_read(service: Service) -> None:
    with running_node(service.directory_dsn, stream_stall_ms=60_000) as slow_reader:
        async with Activity.of(service) as activity, StreamClient(slow_reader.port, service.api_key) as client:
            await client.send(ENDLESS, timeout_ms=3_000)
            await client.read_head()
            assert client.headers["content-type"] == "text/event-stream"
            began_s = time.monotonic()
            await _backends_gone(activity)
            assert time.monotonic() - began_s <= 3.0 + GONE_WITHIN_S + STALL_S
            end = await client.last_event()
            assert end is not None
            assert (end.type, end.content["code"]) == ("error", "statement_timeout")


@pytest.fixture(scope="module")
def written(service: Service) -> str:
    """A statement that writes and returns some 12 MB."""
    service.query("create table if not exists unread_writes (n int, text text)")
    return "insert into unread_writes select n, repeat('x', 3000) from generate_series(1, 4000) n returning n, text"


async def test_an_unread_result_of_a_write_is_kept_no_longer_than_a_stream(service: Service, written: str) -> None:
    with running_node(service.directory_dsn, stream_stall_ms=60_000) as slow_reader:
        async with StreamClient(slow_reader.port, service.api_key, receive_bytes=1024) as client:
            began_s = time.monotonic()
            await client.send(written, timeout_ms=2_000)
            await client.read_head()
            line = await _logged(slow_reader, "client_stalled")
            assert 2.0 <= time.monotonic() - began_s <= 4.0 + GONE_WITHIN_S + STALL_S
            with pytest.raises(BrokenOff):
                async for _ in client.chunks():
                    pass
    assert line["row_count"] < 4_000
    assert line["sent_bytes"] > 0


async def test_unread_writes_use_stream_slots(service: Service, written: str) -> None:
    # Half of the connections of a pool may be streams: one.
    with running_node(service.directory_dsn, stream_stall_ms=60_000, pool_max_connections=2) as slow_reader:
        async with StreamClient(slow_reader.port, service.api_key, receive_bytes=1024) as unread:
            await unread.send(written)
            await unread.read_head()
            before = service.value("select count(*) from unread_writes")
            async with StreamClient(slow_reader.port, service.api_key) as second:
                await second.send(written, timeout_ms=500)
                await second.read_head()
                assert second.status == 503
                assert (await second.json_body())["error"]["code"] == "overloaded"
            assert service.value("select count(*) from unread_writes") == before
        async with StreamClient(slow_reader.port, service.api_key) as third:
            await third.send(written)
            await third.read_head()
            end = await third.last_event()
            assert end is not None
            assert end.type == "done"


async def _logged(node: Node, code: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not (lines := [line for line in node.log.read_text().splitlines() if f'"{code}"' in line]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    line: dict[str, Any] = json.loads(lines[-1])
    return line


async def _streaming_pids(activity: Activity) -> set[int]:
    return await activity.pids("plainsql_stream")


async def _backends_gone(activity: Activity) -> float:
    began_s = time.monotonic()
    while await _streaming_pids(activity):  # another process is watched
        assert time.monotonic() - began_s < 30
        await asyncio.sleep(0.005)
    return time.monotonic() - began_s
