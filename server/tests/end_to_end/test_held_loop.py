"""Long results and long rehearsals hold the event loop only for a small part of the time that they take, however many
clients ask for them.

Results are parsed and encoded on threads, and sent in parts; many statements and times are checked in batches.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.tests.end_to_end.wires import Wire
from server.tests.load import Node, running_node
from server.tests.service import Service

pytestmark = [pytest.mark.timing, pytest.mark.compiled]

VALUE_BYTES = 20_000_000
CLIENTS = 4
VALUES = {
    "digits": f"select repeat('1', {VALUE_BYTES}) as t",
    "escapes": f"""select repeat(E'12345678"\\n', {VALUE_BYTES // 10}) as t""",
}
# Rehearsals: a digest of a long value, and as many verified reads and times as a request may have.
HASHED = {"long": f"select now() || repeat('1', {VALUE_BYTES})", "many": "select * from wide"}
WIDE = f"create table wide ({', '.join(f'c{at} int default 1234' for at in range(1_600))})"
FILL = "insert into wide (c0) select g from generate_series(1, 96) g"
READ = {"sql": "select 1 as one", "rows": False}
READS, NOWS = 2_000, 4_000
Held = Callable[[], dict[str, float]]


@pytest.fixture(scope="module")
def node(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Held]]:
    file = tmp_path_factory.mktemp("loop") / "held"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAINSQL_TEST_LOOP_FILE", str(file))
        with running_node(service.directory_dsn, "server.tests.watched_loop") as running:
            yield running, lambda: _reported(running, file)


def _reported(node: Node, file: Path) -> dict[str, float]:
    file.unlink(missing_ok=True)
    os.kill(node.process.pid, signal.SIGUSR1)
    end_s = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end_s
        time.sleep(0.01)
    reported: dict[str, float] = json.loads(file.read_text())
    return reported


def _received_bytes(port: int, request: bytes) -> int:
    """The size of an answer, which is not kept."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(request)
        return sum(map(len, iter(lambda: connection.recv(1 << 20), b"")))


@pytest.mark.parametrize("kind", VALUES)
def test_the_loop_is_held_for_a_small_part_of_an_answer(service: Service, node: tuple[Node, Held], kind: str) -> None:
    running, held = node
    wire = Wire(running.port, service.api_key, head="Connection: close\r\n")
    request = wire.bytes_of({"sql": VALUES[kind]})
    wire.close()
    held()
    with ThreadPoolExecutor(CLIENTS) as clients:
        sizes = list(clients.map(lambda _: _received_bytes(running.port, request), range(CLIENTS)))
    assert min(sizes) > VALUE_BYTES
    seen = held()
    answer_s = seen["spent_s"] / CLIENTS
    print(f"{kind}: held {seen['held_s'] * 1000:.1f} ms of the {answer_s * 1000:.0f} ms that an answer takes")
    # Measured: a tenth. Before, a half or more.
    assert seen["held_s"] < answer_s / 4


@pytest.fixture
def wide(service: Service) -> Iterator[None]:
    service.query(WIDE)
    service.query(FILL)
    yield
    service.query("drop table wide")


def _rehearsed(wire: Wire, **body: object) -> dict[str, Any]:
    _, answer = wire.query({"dry_run": True, **body})
    answered: dict[str, Any] = json.loads(answer)
    assert answered["success"], answered
    return answered


@pytest.mark.parametrize("values", HASHED)
@pytest.mark.usefixtures("wide")
def test_the_loop_is_held_for_a_small_part_of_a_digest(service: Service, node: tuple[Node, Held], values: str) -> None:
    running, held = node
    wire = Wire(running.port, service.api_key, path="/v1/transaction")
    statements = [{"sql": HASHED[values], "digest": True, "rows": False}]
    # The second time, the columns are known.
    _rehearsed(wire, statements=statements)
    held()
    _rehearsed(wire, statements=statements)
    wire.close()
    seen = held()
    print(f"{values}: held {seen['held_s'] * 1000:.1f} ms of the {seen['spent_s'] * 1000:.0f} ms that a digest takes")
    # Measured: a hundredth or less. When the value was copied, a twentieth.
    assert seen["held_s"] < seen["spent_s"] / 50


def test_the_loop_is_held_for_a_small_part_of_a_rehearsal(service: Service, node: tuple[Node, Held]) -> None:
    running, held = node
    wire = Wire(running.port, service.api_key, path="/v1/transaction")
    (result,) = _rehearsed(wire, statements=[{**READ, "digest": True}])["results"]
    verified = {**READ, "expect": {"multiset_digest": result["multiset_digest"]}}
    nows = [f"2026-11-17T{at // 60:02}:{at % 60:02}:00.000000Z" for at in range(1_440)] * 3
    held()
    _rehearsed(wire, statements=[verified] * READS, nows=nows[:NOWS])
    wire.close()
    seen = held()
    print(f"held {seen['held_s'] * 1000:.1f} ms of the {seen['spent_s'] * 1000:.0f} ms that a rehearsal takes")
    # Measured: a fiftieth. When the body was checked at once, a seventeenth.
    assert seen["held_s"] < seen["spent_s"] / 28
