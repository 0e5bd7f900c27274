"""Records the requests that tests send to the data plane of a service, so that they can be sent again.

With `PLAINSQL_TEST_RECORD=file`, each request adds a line to the file: its path with the query string, its body, and
the headers by which the Neon driver asks for a form of the answer.
`end_to_end/test_fast_lane_recorded.py` reads it. Streams and requests with an idempotency key are left out.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from plainsql_server.lane.opening import PATHS

VARIABLE = "PLAINSQL_TEST_RECORD"
LAYOUT = ("neon-raw-text-output", "neon-array-mode", "neon-batch-isolation-level", "neon-batch-read-only")


def recording() -> list[Callable[[httpx.Request], None]]:
    """What an HTTP client has to call with each request."""
    file = os.environ.get(VARIABLE)
    return [] if file is None else [partial(_record, Path(file))]


def _record(file: Path, request: httpx.Request) -> None:
    headers = request.headers
    is_ordinary = "idempotency-key" not in headers and "event-stream" not in headers.get("accept", "")
    if request.method == "POST" and request.url.path in PATHS and is_ordinary:
        body = request.read().decode("utf-8", "surrogateescape")
        lines = [f"{name}: {headers[name]}" for name in LAYOUT if name in headers]
        with file.open("a", encoding="utf-8") as output:
            # One write, so that the lines of several processes do not mix.
            output.write(json.dumps([request.url.raw_path.decode(), body, lines]) + "\n")


class Recorded(NamedTuple):
    """A request: its path with the query string, its body, and lines of its head."""

    path: str
    body: bytes
    lines: tuple[str, ...]


def recorded(file: Path) -> list[Recorded]:
    """The requests, in the order in which they were sent."""
    requests = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Recorded(path, body.encode("utf-8", "surrogateescape"), tuple(lines)) for path, body, lines in requests]
