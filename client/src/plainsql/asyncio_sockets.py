"""The asyncio driver: what `sockets.py` is to the blocking client.

Owns asyncio's streams and a pool of kept connections. A call that is cancelled closes its connection, and the
service cancels the statement.
"""

import asyncio
import ssl
import time

from plainsql.settings import Address
from plainsql.wire import AddressBook, Lost, NotSent, Request, Response, Send, Steps, T, Wire

_READ_BYTES = 256 * 1024
_IDLE_S_MAX = 55.0
_CONNECT_S_MAX = 10.0


class Connection:
    """One kept connection to one address."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.wire = Wire(address.url.partition("//")[2])
        self.idle_since = time.monotonic()
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None, connect_s: float) -> "Connection":
        try:
            async with asyncio.timeout(connect_s):
                reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, limit=_READ_BYTES)
        except OSError as error:
            raise NotSent(f"{address.url} does not answer, or is not to be trusted: {error}") from error
        return cls(address, reader, writer)

    def is_sound(self) -> bool:
        """Whether it may be used again: not too old, and not ended meanwhile."""
        return time.monotonic() - self.idle_since <= _IDLE_S_MAX and not self._reader.at_eof()

    async def exchange(self, request: Request, authorization: str, wait_s: float) -> Response:
        """The head of the answer; the body is still to be read."""
        try:
            async with asyncio.timeout(wait_s):
                self._writer.write(self.wire.bytes_of(request, authorization))
                await self._writer.drain()
                while (head := self.wire.head()) is None:
                    self.wire.feed(await self._reader.read(_READ_BYTES))
        except OSError as error:
            raise Lost(f"The connection to {self.address.url} broke: {error!r}") from error
        return head

    async def read(self) -> bytes:
        """The next piece of the body; empty at its end."""
        try:
            while (piece := self.wire.piece()) is None:
                self.wire.feed(await self._reader.read(_READ_BYTES))
        except OSError as error:
            raise Lost(f"The connection to {self.address.url} broke: {error}") from error
        return piece

    def close(self) -> None:
        self._writer.transport.abort()


class StreamSource:
    """A body that is read piece by piece. Closing it before its end has the service cancel the statement."""

    def __init__(self, driver: "Driver", connection: Connection) -> None:
        self._driver = driver
        self._connection = connection
        self._open = True

    async def read(self) -> bytes:
        if not self._open:
            # The connection may be somebody else's by now.
            return b""
        piece = await self._connection.read()
        if not piece:
            self._open = False
            self._driver.give_back(self._connection)
        return piece

    def close(self) -> None:
        if self._open:
            self._open = False
            self._connection.close()


class Driver:
    """Runs steps to their end, with connections that are kept between them."""

    def __init__(self, tls: ssl.SSLContext | None, key: str) -> None:
        self._tls = tls
        self._authorization = f"Bearer {key}"
        self._idle: list[Connection] = []
        self._closed = False

    async def run(self, steps: Steps[T], addresses: AddressBook) -> T:
        """What the steps come to, or the error that they end with."""
        try:
            effect = next(steps)
            while True:
                if not isinstance(effect, Send):
                    await asyncio.sleep(effect.seconds)
                    effect = steps.send(None)
                    continue
                try:
                    response = await self._perform(effect, addresses)
                except (NotSent, Lost) as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a generator returns, which is T

    async def _perform(self, effect: Send, addresses: AddressBook) -> Response:
        connection = await self._take(addresses.address_for(effect.request), effect.wait_s)
        try:
            response = await connection.exchange(effect.request, self._authorization, effect.wait_s)
            if effect.as_stream and response.is_stream():
                response.source = StreamSource(self, connection)
                return response
            async with asyncio.timeout(effect.wait_s):
                pieces = []
                while piece := await connection.read():
                    pieces.append(piece)
            response.body = b"".join(pieces)
        except TimeoutError as error:
            connection.close()
            raise Lost("The answer did not come in time.") from error
        except BaseException:
            # Whatever came between, what is left on this connection belongs to no other request.
            connection.close()
            raise
        self.give_back(connection)
        return response

    async def _take(self, address: Address, wait_s: float) -> Connection:
        if self._closed:
            raise NotSent("This client is closed.")
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].address == address:
                connection = self._idle.pop(index)
                if connection.is_sound():
                    return connection
                connection.close()
        tls = self._tls if address.scheme == "https" else None
        return await Connection.open(address, tls, min(wait_s, _CONNECT_S_MAX))

    def give_back(self, connection: Connection) -> None:
        """Keeps the connection for the next request, if it can be used again."""
        if not connection.wire.may_be_used_again() or self._closed:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def close(self) -> None:
        self._closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
