"""The blocking driver: sockets, TLS and a pool of kept connections; runs the protocol's steps.

Owns sockets. A client may be used by several threads: each request has a connection to itself. Refuses to decide what
is sent again; the protocol does.
"""

import select
import socket
import ssl
import threading
import time

from plainsql.settings import Address
from plainsql.wire import AddressBook, Lost, NotSent, Request, Response, Send, Steps, T, Wire

_READ_BYTES = 256 * 1024
# A connection that has been idle for longer may have been forgotten by something on the way, and is not used again.
_IDLE_S_MAX = 55.0
_CONNECT_S_MAX = 10.0


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Certificates are always verified: against this authority, or the system's."""
    return ssl.create_default_context(cafile=ca_file)


class Connection:
    """One kept connection to one address."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, connect_s: float) -> None:
        self.address = address
        self.wire = Wire(address.url.partition("//")[2])
        self.idle_since = time.monotonic()
        try:
            self._socket: socket.socket = socket.create_connection((address.host, address.port), timeout=connect_s)
        except OSError as error:
            raise NotSent(f"{address.url} does not answer: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
        except OSError as error:
            self._socket.close()
            raise NotSent(f"{address.url} is not to be trusted, or speaks no TLS: {error}") from error

    def is_sound(self) -> bool:
        """Whether it may be used again: not too old, and nothing came that nobody asked for (as its end would)."""
        if time.monotonic() - self.idle_since > _IDLE_S_MAX:
            return False
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def exchange(self, request: Request, authorization: str, wait_s: float) -> Response:
        """The head of the answer; the body is still to be read."""
        self._socket.settimeout(wait_s)
        try:
            self._socket.sendall(self.wire.bytes_of(request, authorization))
            while (head := self.wire.head()) is None:
                self.wire.feed(self._socket.recv(_READ_BYTES))
        except OSError as error:
            raise Lost(f"The connection to {self.address.url} broke: {error}") from error
        return head

    def read(self) -> bytes:
        """The next piece of the body; empty at its end."""
        try:
            while (piece := self.wire.piece()) is None:
                self.wire.feed(self._socket.recv(_READ_BYTES))
        except OSError as error:
            raise Lost(f"The connection to {self.address.url} broke: {error}") from error
        return piece

    def close(self) -> None:
        self._socket.close()


class StreamSource:
    """A body that is read piece by piece. Closing it before its end has the service cancel the statement."""

    def __init__(self, driver: "Driver", connection: Connection) -> None:
        self._driver = driver
        self._connection = connection
        self._open = True

    def read(self) -> bytes:
        if not self._open:
            # The connection may be somebody else's by now.
            return b""
        piece = self._connection.read()
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
        self._lock = threading.Lock()
        self._closed = False

    def run(self, steps: Steps[T], addresses: AddressBook) -> T:
        """What the steps come to, or the error that they end with."""
        try:
            effect = next(steps)
            while True:
                if not isinstance(effect, Send):
                    time.sleep(effect.seconds)
                    effect = steps.send(None)
                    continue
                try:
                    response = self._perform(effect, addresses)
                except (NotSent, Lost) as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a generator returns, which is T

    def _perform(self, effect: Send, addresses: AddressBook) -> Response:
        connection = self._take(addresses.address_for(effect.request), effect.wait_s)
        try:
            response = connection.exchange(effect.request, self._authorization, effect.wait_s)
            if effect.as_stream and response.is_stream():
                response.source = StreamSource(self, connection)
                return response
            response.body = b"".join(iter(connection.read, b""))
        except BaseException:
            # Whatever came between, what is left on this connection belongs to no other request.
            connection.close()
            raise
        self.give_back(connection)
        return response

    def _take(self, address: Address, wait_s: float) -> Connection:
        with self._lock:
            if self._closed:
                raise NotSent("This client is closed.")
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].address == address:
                    connection = self._idle.pop(index)
                    if connection.is_sound():
                        return connection
                    connection.close()
        tls = self._tls if address.scheme == "https" else None
        return Connection(address, tls, min(wait_s, _CONNECT_S_MAX))

    def give_back(self, connection: Connection) -> None:
        """Keeps the connection for the next request, if it can be used again."""
        if not connection.wire.may_be_used_again() or self._closed:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
