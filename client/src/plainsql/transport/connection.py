"""A connection to the service that is kept and reused: its deadline, its idle time, and one exchange after the other.

`sockets.py` has the blocking form and `asyncio_sockets.py` the other one; `driver.py` keeps the pool.
"""

import time

from plainsql.settings import Address
from plainsql.transport.wire import Lost, Request, Response, Wire

READ_BYTES = 256 * 1024
# After this idle time, a proxy or firewall may have dropped the connection, so it is not reused.
_IDLE_S_MAX = 55.0


class Connection:
    """A pooled connection to one address. Its current exchange must end by `deadline` (on `time.monotonic`'s clock)."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.deadline = 0.0
        self.has_answered = False
        self.idle_since = time.monotonic()
        self._wire = Wire(address.url.partition("//")[2])

    async def write(self, data: bytes) -> None:
        raise NotImplementedError

    async def receive(self) -> bytes:
        """Some bytes; empty if the peer closed the connection. Raises OSError, also at the deadline."""
        raise NotImplementedError

    def is_quiet(self) -> bool:
        """Whether no unexpected bytes or end of stream have arrived."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def left_s(self) -> float:
        """The time until the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def is_sound(self) -> bool:
        """Whether the idle connection can be reused."""
        return time.monotonic() - self.idle_since <= _IDLE_S_MAX and self.is_quiet()

    def may_be_used_again(self) -> bool:
        self.idle_since = time.monotonic()
        return self._wire.may_be_used_again()

    async def exchange(self, request: Request, authorization: str) -> Response:
        """Sends a request and returns the response's head. The body is read with `read`."""
        data = self._wire.bytes_of(request, authorization)
        received = b""
        try:
            await self.write(data)
            while (head := self._wire.head()) is None:
                before, received = received, await self.receive()
                if not before and not received:
                    raise Lost(f"{self.address.url} closed the connection without a response.")
                self.has_answered = True
                self._wire.feed(received)
        except OSError as error:
            raise self._lost(error) from error
        return head

    async def read(self) -> bytes:
        """The next chunk of the body; empty at its end."""
        try:
            while (chunk := self._wire.chunk()) is None:
                self._wire.feed(await self.receive())
        except OSError as error:
            raise self._lost(error) from error
        return chunk

    def _lost(self, error: OSError) -> Lost:
        if isinstance(error, TimeoutError):
            return Lost(f"{self.address.url} didn't respond before the timeout.")
        return Lost(f"The connection to {self.address.url} broke: {error}.")
