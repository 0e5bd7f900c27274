"""Observations to log lines: one JSON object a line on standard error.

Owns the format. Observations hold no secrets and no customer data, so there is nothing to redact here.
"""

import sys
from dataclasses import fields
from typing import BinaryIO

import msgspec

from plainsql_server.core.clock import now
from plainsql_server.core.observation import Observation, Observe

_encode = msgspec.json.Encoder().encode


def log_to(stream: BinaryIO = sys.stderr.buffer) -> Observe:
    """An exit for observations that writes to a stream."""

    def observe(observation: Observation) -> None:
        content = {field.name: getattr(observation, field.name) for field in fields(observation)}
        line = {"at": now(), "event": type(observation).__name__, **content}
        stream.write(_encode({name: value for name, value in line.items() if value is not None}) + b"\n")
        stream.flush()

    return observe
