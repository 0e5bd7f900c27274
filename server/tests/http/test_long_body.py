"""Long bodies: all bytes in order, in parts, of which each iteration of the loop sends one, however many clients."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.http.server.channel import CancelReason, ResponseChannel
from plainsql_server.http.server.long_body import (
    LONG_BODY_BYTES,
    PART_BYTES,
    JoinedRows,
    LongBody,
    body_of,
    send_parts,
)

pytestmark = pytest.mark.unit


class Connection:
    """As much of a connection as a long body needs."""

    def __init__(self) -> None:
        self.unsent: list[int] = []

    def note_unsent(self, unsent_bytes: int) -> None:
        self.unsent.append(unsent_bytes)


def channel_to(connection: Connection) -> ResponseChannel:
    nothing: Any = None
    seen: Any = connection
    return ResponseChannel(seen, nothing, is_chunked=True)


def rows_of(sizes: list[int]) -> JoinedRows:
    rows = [bytes([97 + index % 26]) * size for index, size in enumerate(sizes)]
    return JoinedRows(rows, sum(sizes))


SIZES = st.lists(st.sampled_from([1, 2, 100, 5_000, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 200_000]), max_size=12)


@given(st.lists(SIZES, max_size=4), st.integers(0, 700))
def test_the_parts_are_the_body(segments: list[list[int]], small: int) -> None:
    rows = [rows_of(sizes) for sizes in [*segments, [3] * small]]
    body = LongBody([b"<", *rows, b">" * 70_000])
    whole = b"<" + b"".join([b",".join(each.rows) for each in rows]) + b">" * 70_000
    parts = list(body.parts())
    assert b"".join(parts) == whole
    assert len(body) == len(whole)
    assert max(map(len, parts)) <= PART_BYTES


def test_small_rows_are_not_sent_one_by_one() -> None:
    body = LongBody([rows_of([100] * 100_000)])
    assert len(list(body.parts())) < 1_000


def test_a_short_body_is_bytes() -> None:
    assert body_of([b"[", rows_of([1, 1]), b"]"]) == b"[a,b]"
    assert isinstance(body_of([b"x" * (LONG_BODY_BYTES + 1)]), LongBody)


async def test_an_iteration_sends_one_part_whatever_the_number_of_clients() -> None:
    sent: list[bytes] = []

    async def write(part: bytes) -> bool:
        sent.append(part)
        return True

    body = LongBody([b"x" * (10 * PART_BYTES)])
    tasks = [asyncio.create_task(send_parts(body, channel_to(Connection()), write)) for _ in range(8)]
    most, before = 0, 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        most, before = max(most, len(sent) - before), len(sent)
    assert most == 1
    assert len(sent) == 80


async def test_the_connection_knows_what_is_left() -> None:
    connection = Connection()

    async def write(part: bytes) -> bool:
        return bool(part)

    await send_parts(LongBody([b"x" * (2 * PART_BYTES + 1)]), channel_to(connection), write)
    assert connection.unsent == [2 * PART_BYTES + 1, PART_BYTES + 1, 1, 0, 0]


async def test_a_shutdown_does_not_cut_it_and_a_lost_client_does() -> None:
    connection, may_write = Connection(), asyncio.Event()

    async def write(_: bytes) -> bool:
        await may_write.wait()
        return True

    channel = channel_to(connection)
    sending = asyncio.create_task(send_parts(LongBody([b"x" * PART_BYTES * 3]), channel, write))
    waiting: Any = sending
    channel.task = waiting
    await asyncio.sleep(0)
    channel.cancel(CancelReason.SHUTDOWN)
    await asyncio.sleep(0)
    assert not sending.done()
    channel.cancel(CancelReason.CLIENT_GONE)
    # Without the exception, which would keep the body alive.
    assert await sending is False
    assert connection.unsent[-1] == 0


async def test_nothing_more_is_sent_once_the_client_is_gone() -> None:
    sent: list[bytes] = []

    async def write(part: bytes) -> bool:
        sent.append(part)
        return False

    connection = Connection()
    assert not await send_parts(LongBody([b"x" * PART_BYTES * 3]), channel_to(connection), write)
    assert len(sent) == 1
    assert connection.unsent[-1] == 0
