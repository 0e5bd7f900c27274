"""The requests of the other end-to-end tests get the same answers on the fast lane and on the ordinary path.

The end-to-end tests run once, and the queries and transactions that they send through their shared client are recorded,
unless they are long, wait or cannot be sent twice. Then each is sent three times, so that it can take the
lane, to a node without the lane, to one with it, and to those that hand over after each of its steps. Every node has a
database of its own. A second node without the lane shows which answers differ in any case: those that depend on the
time or on chance. `PLAINSQL_TEST_RECORDED=file` takes the requests of an earlier recording.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from plainsql_server.dev.ports import free_port
from plainsql_server.lane.opening import SQL
from server.tests.end_to_end.fast_lane import MODES, ROUNDS
from server.tests.end_to_end.wires import Wire, counted, same, total, without_oids
from server.tests.load import Node, running_node
from server.tests.recording import VARIABLE, Recorded, recorded
from server.tests.service import Service

pytestmark = [pytest.mark.compiled, pytest.mark.full, pytest.mark.timeout(3_600)]

_TESTS = Path(__file__).parent
_ROOT = _TESTS.parents[2]
_MAX_BODY_BYTES = 16_384
# These wait, take long, show times with few digits, or ask for a stream.
_LEFT_OUT = (b"pg_sleep", b"generate_series(1, 100000", b"repeat('x', 100000", b"advisory", b"analyze", b"/*+")
_CONTROL = "control"


@dataclass
class Side:
    """A node with a database of its own, and a connection to it."""

    node: Node
    key: str
    database: str
    metrics_port: int
    wire: Wire

    def ask(self, request: Recorded) -> tuple[bytes, bytes]:
        self.wire.send(self._bytes_of(request))
        head, answered = without_oids(same(self.wire.answer()))
        if b"connection: close" in head:
            self.wire.close()
            self.wire = Wire(self.node.port, self.key)
        return head, answered.replace(self.database.encode(), b"database")

    def close(self) -> None:
        self.wire.close()

    def _bytes_of(self, request: Recorded) -> bytes:
        kind = "text/plain" if request.path.startswith("/query") else "application/json"
        caller = [f"Authorization: Bearer {self.key}", f"X-Database: {self.database}"]
        if request.path == SQL:
            caller = [f"Neon-Connection-String: postgresql://app:{self.key}@db.example.com/{self.database}"]
        lines = [
            f"POST {request.path} HTTP/1.1", "Host: x", *caller, *request.lines, f"Content-Type: {kind}",
            f"Content-Length: {len(request.body)}",
        ]  # fmt: skip
        return "\r\n".join([*lines, "", ""]).encode() + request.body


@pytest.fixture
def sides(service: Service) -> Iterator[dict[str, Side]]:
    with ExitStack() as stack:
        yield {name: _opened(stack, service, name) for name in (*MODES, _CONTROL)}


def _opened(stack: ExitStack, service: Service, name: str) -> Side:
    service.customers.add_database(f"recorded-{name}", "dev")
    port = free_port()
    mode = "off" if name == _CONTROL else name
    node = stack.enter_context(
        # With one connection, the state of a session depends on nothing but the requests before.
        running_node(service.directory_dsn, fast_lane=mode, metrics_port=port, pool_max_connections=1)
    )
    side = Side(node, service.api_key, f"recorded-{name}", port, Wire(node.port, service.api_key))
    stack.callback(side.close)
    return side


@pytest.fixture
def requests(tmp_path: Path) -> list[Recorded]:
    given = os.environ.get("PLAINSQL_TEST_RECORDED")
    file = Path(given) if given else _record(tmp_path / "requests.jsonl")
    found = recorded(file)
    kept = [each for each in dict.fromkeys(found) if _is_wanted(each.body)]
    print(f"{len(found)} requests were recorded, {len(set(found))} of them different, {len(kept)} are sent")
    assert len(kept) > 0.9 * len(set(found))
    return kept


def _is_wanted(body: bytes) -> bool:
    return len(body) <= _MAX_BODY_BYTES and not any(word in body for word in _LEFT_OUT)


def _record(file: Path) -> Path:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "loadfile", str(_TESTS)]
    ordinary = "not (timing or slow or chaos or browser or full)"
    # Recorded in the sizes of the gate.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_TEST_")}
    environment[VARIABLE] = str(file)
    subprocess.run([*command, "-m", ordinary], env=environment, cwd=_ROOT, check=True, timeout=1_800)
    return file


# The requests come first: recording them takes minutes, and the service closes a connection that idles for so long.
def test_recorded_requests_get_the_same_answers(requests: list[Recorded], sides: dict[str, Side]) -> None:
    answers, by_chance = 0, 0
    for request in requests:
        for _ in range(ROUNDS):
            given = {name: side.ask(request) for name, side in sides.items()}
            answers += 1
            if given[_CONTROL] != given["off"]:
                by_chance += 1
                continue
            for mode in MODES[1:]:
                assert given[mode] == given["off"], (mode, request)
    taken = total(counted(sides["on"].metrics_port), "plainsql_lane_requests_total")
    print(f"{answers} answers of each, {by_chance} differ without the lane, too; {taken / answers:.0%} on the lane")
    assert by_chance < 0.1 * answers
    assert taken > 0.2 * answers
