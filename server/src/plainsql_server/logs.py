"""Observations to log lines: one JSON object a line on standard error.

Owns the format and the writing. Lines are gathered for a moment, then encoded and written together, because
a write a request costs as much as rendering its answer; a crash loses at most that moment. Observations
hold no secrets and no customer data, so there is nothing to redact here.
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
    """An exit for observations that writes them to a stream."""

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
        """Writes what is gathered."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._stream.write(_encode_lines(gathered))
            self._stream.flush()

    def _write_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # Outside the event loop, at start or stop, nothing is in a hurry.
            self.write()
        else:
            loop.call_later(_GATHER_S, self.write)
