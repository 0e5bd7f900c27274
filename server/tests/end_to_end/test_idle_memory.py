"""What an idle connection costs: at most 20 kB of the process's memory, after it has used the fast lane.

`python -m pytest -s` prints the figure. `PLAINSQL_TEST_IDLE_CONNECTIONS=10000` is the full size.
"""

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.wires import Wire, counted, total
from server.tests.load import Node, running_node, size
from server.tests.service import Service

CONNECTIONS = size("PLAINSQL_TEST_IDLE_CONNECTIONS", 1_000)
LIMIT_BYTES = 20_000

pytestmark = [pytest.mark.compiled, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _enough_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 2 * CONNECTIONS + 1_000)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def own_bytes(node: Node) -> int:
    """The memory that belongs to a process alone: not the code, which it shares, nor what the kernel keeps for it."""
    lines = Path(f"/proc/{node.process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def test_an_idle_connection_takes_20_kb_at_most(service: Service) -> None:
    metrics_port = free_port()
    settings = {"max_connections": 2 * CONNECTIONS, "metrics_port": metrics_port}
    with running_node(service.directory_dsn, fast_lane="on", **settings) as node, ExitStack() as stack:
        # What the first hundred allocate once is not theirs.
        use(stack, node, service.api_key, 100)
        before, begun = own_bytes(node), total(counted(metrics_port), "plainsql_lane_requests_total")
        use(stack, node, service.api_key, CONNECTIONS)
        each = (own_bytes(node) - before) / CONNECTIONS
        print(f"{CONNECTIONS} idle connections: {each / 1000:.1f} kB each")
        # Now and then, a caller must be looked up again.
        assert total(counted(metrics_port), "plainsql_lane_requests_total") > begun + CONNECTIONS * 0.95
    assert each <= LIMIT_BYTES


def use(stack: ExitStack, node: Node, key: str, count: int) -> None:
    """Opens connections, each of which makes requests until one has taken the lane."""
    for number in range(count):
        wire = Wire(node.port, key, f"X-Request-Id: req_idle{number:08}\r\n")
        stack.callback(wire.close)
        for _ in range(2):
            _, body = wire.query({"sql": "select $1::int as a", "params": [number]})
            assert b'"success":true' in body, body
