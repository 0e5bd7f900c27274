"""The asyncio client's connections. A cancelled call closes its connection, and the service cancels the statement."""

import asyncio
import ssl

from plainsql.settings import Address
from plainsql.transport.connection import READ_BYTES, Connection
from plainsql.transport.sockets import not_reached


class AsyncConnection(Connection):
    """A connection over a pair of asyncio streams."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(address)
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(self.left_s()):
            self._writer.write(data)
            await self._writer.drain()

    async def receive(self) -> bytes:
        async with asyncio.timeout(self.left_s()):
            return await self._reader.read(READ_BYTES)

    def is_quiet(self) -> bool:
        return not self._reader.at_eof() and self._reader.exception() is None

    def close(self) -> None:
        self._writer.transport.abort()


async def open_connection(address: Address, tls: ssl.SSLContext | None, connect_s: float) -> Connection:
    """Connects within `connect_s` seconds."""
    try:
        async with asyncio.timeout(connect_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, limit=READ_BYTES)
    except OSError as error:
        raise not_reached(address, error) from error
    return AsyncConnection(address, reader, writer)
