"""A valve between the engine and libpq, for results that may be too large for memory.

Owns the counting of what passes. libpq reads whatever has arrived and holds a result until it is whole,
without saying how much that is by now. So when a result turns out to come in many pieces, libpq's socket is
exchanged under its descriptor for one end of a pair, and what the engine sends is passed on piece by piece
and counted. The ordinary result never gets here.
"""

import os
import socket

# Far less than what a pair of sockets buffers, so that passing a piece on never blocks.
_PIECE_BYTES = 64 * 1024


class Valve:
    """Stands in the engine's place behind a descriptor, from its making until `remove`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._engine = socket.socket(fileno=os.dup(descriptor))
        libpqs_end, self._our_end = socket.socketpair()
        libpqs_end.setblocking(False)
        os.dup2(libpqs_end.fileno(), descriptor, inheritable=False)
        libpqs_end.close()
        self.passed_bytes = 0

    def fileno(self) -> int:
        """What to watch instead of libpq's descriptor."""
        return self._engine.fileno()

    def pass_on(self) -> None:
        """Passes one piece on to libpq, which must read it before the next; or the end, if the engine hung up."""
        try:
            piece = self._engine.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self.passed_bytes += len(piece)
            self._our_end.sendall(piece)
        else:
            self._our_end.close()

    def remove(self) -> None:
        """Gives libpq its own socket back. Everything that was passed on must have been read."""
        os.dup2(self._engine.fileno(), self._descriptor, inheritable=False)
        self.close()

    def close(self) -> None:
        self._engine.close()
        self._our_end.close()
