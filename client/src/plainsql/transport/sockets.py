"""Blocking connections: sockets and TLS. Their coroutines never suspend; see `driver.py`."""

import select
import socket
import ssl
import time
from typing import Any

from plainsql.errors import SettingsError
from plainsql.settings import Address
from plainsql.transport.connection import READ_BYTES, Connection
from plainsql.transport.wire import NotSent


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """A TLS context that always verifies certificates, against this CA file or the system's."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"Can't use the CA file {ca_file}: {error}") from error


def not_reached(address: Address, error: OSError) -> NotSent:
    """The error for a failed connection, with whether a retry can help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"The certificate of {address.url} isn't trusted: {error.verify_message}."
        advice = "If it has a CA of its own, give that CA's file: ca_file=…, --ca-file or PLAINSQL_CA_FILE."
        return NotSent(f"{message} {advice}", is_final=True, is_untrusted=True)
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return NotSent(f"Host {address.host} not found: {error.strerror}.", is_final=True)
    if isinstance(error, ssl.SSLError):
        return NotSent(f"TLS handshake with {address.url} failed: {error}.")
    return NotSent(f"Can't connect to {address.url}: {error.strerror or str(error) or 'timed out'}.")


class BlockingConnection(Connection):
    """A connection over a socket, with TLS if the URL is https."""

    def __init__(self, address: Address, connected: socket.socket) -> None:
        super().__init__(address)
        self._socket = connected

    async def write(self, data: bytes) -> None:
        self._socket.settimeout(self.left_s())
        self._socket.sendall(data)

    async def receive(self) -> bytes:
        self._socket.settimeout(self.left_s())
        return self._socket.recv(READ_BYTES)

    def is_quiet(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()


async def open_connection(address: Address, tls: ssl.SSLContext | None, connect_s: float) -> Connection:
    """Connects. Each step may take `connect_s` seconds."""
    # Passing the name as bytes avoids the IDNA codec, which is slow to import.
    host = address.host.encode() if address.host.isascii() else address.host
    try:
        place: Any = (host, address.port)
        connected = socket.create_connection(place, timeout=connect_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connected = tls.wrap_socket(connected, server_hostname=host)
        except OSError:
            connected.close()
            raise
    except OSError as error:
        raise not_reached(address, error) from error
    return BlockingConnection(address, connected)


async def pause(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)  # noqa: ASYNC251  # blocks on purpose, see `driver.py`
