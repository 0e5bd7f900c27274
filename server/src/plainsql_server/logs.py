"""Writes observations to the log: one JSON object per line on standard error.

Lines are buffered for 0.1 s, then encoded and written together, because one write per request costs as much as
rendering its response. A crash loses at most that buffer. Observations contain no secrets and no customer data, so
there is nothing to redact here.
"""

import asyncio
import sys
from typing import BinaryIO

import msgspec

from plainsql_server.core.observation import Observation

_GATHER_S = 0.1
_MAX_GATHERED = 1_000

_encode_lines = msgspec.json.Encoder().encode_lines


class Log:
    """An observer that writes observations to a stream."""

    def __init__(self, stream: BinaryIO = sys.stderr.buffer) -> None:
        self._stream = stream
        self._gathered: list[Observation] = []

    def __call__(self, observation: Observation) -> None:
        self._gathered.append(observation)
        if len(self._gathered) == 1:
            self._write_soon()
        elif len(self._gathered) >= _MAX_GATHERED:
            self.write()

    def write(self) -> None:
        """Writes the buffered observations."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._stream.write(_encode_lines(gathered))
            self._stream.flush()

    def write_lines(self, lines: bytes) -> None:
        """Writes lines that are encoded already, after the buffered observations."""
        self.write()
        self._stream.write(lines)
        self._stream.flush()

    def _write_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # There is no event loop at start and stop, and no hurry either: write at once.
            self.write()
        else:
            loop.call_later(_GATHER_S, self.write)
