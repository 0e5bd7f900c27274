"""Blocking connections: sockets and TLS. Their coroutines never pause; see `driver.py`."""

import select
import socket
import ssl
import time
from typing import Any

from plainsql.driver import READ_BYTES, Connection
from plainsql.errors import SettingsError
from plainsql.settings import Address
from plainsql.wire import NotSent


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Certificates are always verified: against this authority, or the system's."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"The certificate authority {ca_file} cannot be used: {error}") from error


def not_reached(address: Address, error: OSError) -> NotSent:
    """Why there is no connection, and whether trying again can help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = f"The certificate of {address.url} is not trusted: {error.verify_message}."
        return NotSent(f"{said} If the authority is your own, name its ca_file.", is_final=True)
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return NotSent(f"There is no host {address.host}: {error.strerror}.", is_final=True)
    if isinstance(error, ssl.SSLError):
        return NotSent(f"{address.url} speaks no TLS: {error}.")
    return NotSent(f"{address.url} does not answer: {error.strerror or str(error) or 'no connection in time'}.")


class BlockingConnection(Connection):
    """A socket, with TLS where the address says so."""

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
    """Connects, within this time for each step."""
    # As bytes, a name is not read as IDNA, whose tables a command would wait for.
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
    time.sleep(seconds)  # noqa: ASYNC251  # this coroutine blocks, as whoever runs it wants
