"""A byte-counting relay between the server's socket and libpq, for results that may not fit in memory.

libpq reads whatever has arrived and buffers a result until it is complete, and does not say how much it holds. So when
a result arrives in more than one chunk, the valve replaces the socket behind libpq's file descriptor with one end of a
socket pair (dup2). What the server sends is then passed on chunk by chunk, and counted. Results that arrive in one
chunk, the usual case, never need a valve.
"""

import os
import select
import socket

# Far less than a socket pair buffers, so passing on a chunk never blocks.
_CHUNK_BYTES = 64 * 1024


class ResultTooLarge(Exception):
    """A result exceeded `max_result_bytes` before it was complete. The connection is closed.

    Whether the statement committed is unknown: the server's last bytes may have been in flight.
    """


def has_hung_up(watched: "int | Valve") -> bool:
    """Whether the server has closed its end."""
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


class Valve:
    """Sits between the server and libpq from its creation until `remove`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._engine = socket.socket(fileno=os.dup(descriptor))
        libpqs_end, self._our_end = socket.socketpair()
        libpqs_end.setblocking(False)
        os.dup2(libpqs_end.fileno(), descriptor, inheritable=False)
        libpqs_end.close()
        self.passed_bytes = 0

    def fileno(self) -> int:
        """The descriptor of the server's socket, to watch instead of libpq's."""
        return self._engine.fileno()

    def pass_on(self) -> bool:
        """Passes one chunk on to libpq, which must read it before the next; or EOF, if the server hung up.

        Returns False if nothing has arrived.
        """
        try:
            chunk = self._engine.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if chunk:
            self.passed_bytes += len(chunk)
            self._our_end.sendall(chunk)
        else:
            self._our_end.close()
        return True

    def remove(self) -> None:
        """Puts the server's socket back behind libpq's descriptor. libpq must have read everything passed on."""
        os.dup2(self._engine.fileno(), self._descriptor, inheritable=False)
        self.close()

    def close(self) -> None:
        self._engine.close()
        self._our_end.close()
