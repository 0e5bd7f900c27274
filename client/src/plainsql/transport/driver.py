"""Runs the protocol's steps over pooled connections. Both clients share this code.

The connections, of `sockets.py` and `asyncio_sockets.py`, do the reading, writing and waiting. Those of `sockets.py`
block: a coroutine that uses them never suspends, and `finish` runs it to its end. Retries are decided in `retry.py`.
"""

import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from threading import Lock
from typing import Any

from plainsql.settings import Address
from plainsql.transport.connection import Connection
from plainsql.transport.wire import AddressBook, Lost, NotSent, Response, Send, Steps, T

_CONNECT_S_MAX = 10.0
_TLS_PROBE_S = 1.0
_UNANSWERED_BEFORE_PROBE = 2


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over blocking connections to its end and returns its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what a coroutine returns, which is T
    raise AssertionError("A coroutine over blocking connections was suspended.")


Open = Callable[[Address, ssl.SSLContext | None, float], Awaitable[Connection]]


class StreamSource:
    """A response body that is read in chunks. If it is closed early, the service cancels the statement."""

    def __init__(self, driver: "Driver", connection: Connection) -> None:
        self._driver = driver
        self._connection: Connection | None = connection

    async def read(self) -> bytes:
        connection = self._connection
        if connection is None:
            return b""
        try:
            chunk = await connection.read()
        except BaseException:
            self.close()
            raise
        if not chunk:
            self._connection = None
            self._driver.give_back(connection)
        return chunk

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Driver:
    """Runs steps to their end over a pool of connections. Thread-safe."""

    def __init__(
        self, open_connection: Open, pause: Callable[[float], Awaitable[None]], tls: ssl.SSLContext | None, key: str
    ) -> None:
        self._open = open_connection
        self._pause = pause
        self._tls = tls
        self._authorization = f"Bearer {key}"
        self._idle: list[Connection] = []
        self._lock = Lock()
        self._closed = False
        self._unanswered = 0

    async def run(self, steps: Steps[T], addresses: AddressBook) -> T:
        """Runs the steps and returns their result, or raises their error."""
        try:
            effect = next(steps)
            while True:
                if not isinstance(effect, Send):
                    await self._pause(effect.seconds)
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
        finally:
            # At once: an interrupted transaction has failed before the caller handles the interruption.
            steps.close()

    async def _perform(self, effect: Send, addresses: AddressBook) -> Response:
        deadline = time.monotonic() + effect.wait_s
        connection = await self._take(addresses.address_for(effect.request), effect.wait_s)
        connection.deadline = deadline
        try:
            response = await connection.exchange(effect.request, self._authorization)
            if effect.as_stream and response.is_stream():
                response.source = StreamSource(self, connection)
                return response
            chunks = []
            while chunk := await connection.read():
                chunks.append(chunk)
            response.body = b"".join(chunks)
        except BaseException as error:
            # Unread bytes may be left on this connection, so it must not be reused.
            connection.close()
            if isinstance(error, Lost) and not connection.has_answered:
                await self._check_scheme(connection.address)
            raise
        self.give_back(connection)
        return response

    async def _check_scheme(self, address: Address) -> None:
        """Raises NotSent if an http:// URL has the port of an HTTPS server, which just hangs up.

        Asks only when that happens for the second time: the first may be a restart, and asking takes time.
        """
        self._unanswered += 1
        if address.scheme != "http" or self._unanswered != _UNANSWERED_BEFORE_PROBE:
            return
        secure = address._replace(scheme="https")
        try:
            (await self._open(secure, ssl.create_default_context(), _TLS_PROBE_S)).close()
        except NotSent as error:
            if not isinstance(error.__cause__, ssl.SSLCertVerificationError):
                return
        raise NotSent(f"This port speaks HTTPS; use {secure.url}.", is_final=True)

    async def _take(self, address: Address, wait_s: float) -> Connection:
        if (kept := self._take_kept(address)) is not None:
            return kept
        tls = self._tls if address.scheme == "https" else None
        return await self._open(address, tls, min(wait_s, _CONNECT_S_MAX))

    def _take_kept(self, address: Address) -> Connection | None:
        with self._lock:
            if self._closed:
                raise NotSent("This client is closed.", is_final=True)
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].address == address:
                    connection = self._idle.pop(index)
                    if connection.is_sound():
                        return connection
                    connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """Returns a connection to the pool if it can be reused; otherwise closes it."""
        with self._lock:
            if not self._closed and connection.may_be_used_again():
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
