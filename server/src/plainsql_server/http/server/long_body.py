"""Long bodies: made of what there is, without a copy of the whole, and sent in parts between which other requests run.

    response.body = body_of([before, JoinedRows(rows, size_bytes), after])
    await send_parts(response.body, channel, write)

To join, encrypt and send tens of megabytes in one go takes hundreds of milliseconds. Of all long bodies, one part is
sent in each iteration of the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from plainsql_server.core.loop_share import share_loop
from plainsql_server.http.server.channel import CancelReason, ResponseChannel

# Longer bodies are sent in parts.
LONG_BODY_BYTES = 256 * 1024
PART_BYTES = 64 * 1024
# JoinedRows that are joined without looking at each of them, if they are small.
_BLOCK_ROWS = 256


class JoinedRows(NamedTuple):
    """Encoded rows, to be sent with commas between them, and their size without these."""

    rows: list[bytes]
    size_bytes: int

    @property
    def joined_bytes(self) -> int:
        return self.size_bytes + max(0, len(self.rows) - 1)


class LongBody:
    """A body in segments. It keeps them until it is sent."""

    __slots__ = ("_segments", "_size_bytes")

    def __init__(self, segments: Sequence[bytes | JoinedRows]) -> None:
        self._segments = segments
        self._size_bytes = _size_of(segments)

    def __len__(self) -> int:
        return self._size_bytes

    def parts(self) -> Iterator[bytes]:
        """The body in parts to send, of at most PART_BYTES each."""
        for segment in self._segments:
            yield from _cut(segment) if isinstance(segment, bytes) else _joined(segment.rows)


Body = bytes | LongBody


def body_of(segments: Sequence[bytes | JoinedRows]) -> Body:
    """The body that consists of these segments."""
    if _size_of(segments) > LONG_BODY_BYTES:
        return LongBody(segments)
    return b"".join([each if isinstance(each, bytes) else b",".join(each.rows) for each in segments])


async def send_parts(body: LongBody, channel: ResponseChannel, write: Callable[[bytes], Awaitable[bool]]) -> bool:
    """Sends a body with `write`, which waits while the client is behind. Both return False if the client is gone."""
    connection, unsent_bytes = channel.connection, len(body)
    # From here on, a shutdown waits for it.
    channel.is_sending = True
    connection.note_unsent(unsent_bytes)
    try:
        for part in body.parts():
            await share_loop()
            if not await write(part):
                return False
            unsent_bytes -= len(part)
            connection.note_unsent(unsent_bytes)
    except asyncio.CancelledError:
        if channel.cancel_reason is not CancelReason.CLIENT_GONE:
            raise
        # A task that ends with the exception would keep it, and with it the body, until a garbage collection.
        return False
    finally:
        connection.note_unsent(0)
    return True


def _size_of(segments: Sequence[bytes | JoinedRows]) -> int:
    return sum([len(each) if isinstance(each, bytes) else each.joined_bytes for each in segments])


def _cut(text: bytes) -> Iterator[bytes]:
    for start in range(0, len(text), PART_BYTES):
        yield text[start : start + PART_BYTES]


def _joined(rows: list[bytes]) -> Iterator[bytes]:
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        if start:
            yield b","
        if sum(map(len, block)) + len(block) <= PART_BYTES:
            yield b",".join(block)
        else:
            yield from _joined_one_by_one(block)


def _joined_one_by_one(rows: list[bytes]) -> Iterator[bytes]:
    group: list[bytes] = []
    size_bytes = 0
    for index, row in enumerate(rows):
        text = b"," + row if index and len(row) < PART_BYTES else row
        if group and size_bytes + len(text) > PART_BYTES:
            yield b"".join(group)
            group, size_bytes = [], 0
        if len(text) < PART_BYTES:
            group.append(text)
            size_bytes += len(text)
            continue
        if index:
            yield b","
        yield from _cut(row)
    if group:
        yield b"".join(group)
