"""Observations to log lines: one JSON object a line on standard error.

Owns the format and the writing. Lines are gathered for a moment and written together, because a write a
request costs as much as rendering its answer; a crash loses at most that moment. Observations hold no
secrets and no customer data, so there is nothing to redact here.
"""

import asyncio
import sys
from typing import BinaryIO

import msgspec

from plainsql_server.core.clock import now
from plainsql_server.core.observation import Observation

_GATHER_S = 0.1
_MAX_GATHERED_LINES = 500

_encode = msgspec.json.Encoder().encode


class Log:
    """An exit for observations that writes them to a stream."""

    def __init__(self, stream: BinaryIO = sys.stderr.buffer) -> None:
        self._stream = stream
        self._lines: list[bytes] = []

    def __call__(self, observation: Observation) -> None:
        head = b'{"at":"%b","event":"%b",' % (now().isoformat().encode(), type(observation).__name__.encode())
        self._lines.append(head + _encode(observation)[1:])
        if len(self._lines) == 1:
            self._write_soon()
        elif len(self._lines) >= _MAX_GATHERED_LINES:
            self.write()

    def write(self) -> None:
        """Writes what is gathered."""
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write(b"\n".join(lines) + b"\n")
            self._stream.flush()

    def _write_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # Outside the event loop, at start or stop, nothing is in a hurry.
            self.write()
        else:
            loop.call_later(_GATHER_S, self.write)
