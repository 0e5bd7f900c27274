"""POST /sql is as fast as POST /v1/query: the same statement through both, in turns, on the ordinary path.

The fast lane, which POST /sql doesn't take, is switched off, and measured for comparison. Two routes of one process are
compared, in the same seconds, by the processor time of a request and by requests per second; the best load of each
counts.
"""

import math
from collections.abc import Iterator

import pytest

from bench.loads import posts
from bench.processes import cpu_s
from bench.workloads import Post
from server.tests import programs
from server.tests.load import IS_FULL, Node, running_node, size
from server.tests.service import Service

pytestmark = pytest.mark.timing

AT_LEAST = 0.95
# In the gate, so many loads or more: a busy host delays some of them, a slow route is slow in all of them.
LOADS = size("PLAINSQL_TEST_NEON_LOADS", 3)
MOST_LOADS = 15
REQUESTS = size("PLAINSQL_TEST_NEON_REQUESTS", 1_000)
CONNECTIONS = 8
# Only a service that hangs takes so long.
LOAD_SECONDS = 60
TABLE = "neon_rates"
SQL = f"select id, amount from {TABLE} where id = $1"
NEON = {"Neon-Raw-Text-Output": "true", "Neon-Array-Mode": "true"}
QUERY = Post("/v1/query", {"sql": SQL, "params": ["<bid>"], "row_format": "array"})
ROUTES = {
    "/sql": Post("/sql", {"query": SQL, "params": ["<bid>"]}),
    "/v1/query": QUERY,
}


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = "neon-rates"
    service.customers.add_database(name, "dev")
    service.query(f"create table {TABLE} as select 1 as id, 1.5 as amount", database=name)
    return name


@pytest.fixture(scope="module")
def nodes(service: Service) -> Iterator[dict[str, Node]]:
    with (
        running_node(service.directory_dsn, fast_lane="off") as ordinary,
        running_node(service.directory_dsn, fast_lane="on") as lane,
    ):
        yield {"ordinary": ordinary, "lane": lane}


def load(node: Node, key: str, database: str, post: Post) -> tuple[float, float]:
    """Requests per second, and microseconds of the node's processor time for each."""
    headers = {"Content-Type": "application/json"}
    if post is QUERY:
        headers |= {"Authorization": f"Bearer {key}", "X-Database": database}
    else:
        headers |= {"Neon-Connection-String": f"postgresql://app:{key}@localhost/{database}", **NEON}
    began_s = cpu_s(node.process.pid)
    done = posts(f"http://127.0.0.1:{node.port}", headers, post, CONNECTIONS, LOAD_SECONDS, scale=1, at_most=REQUESTS)
    return done.per_second, (cpu_s(node.process.pid) - began_s) / REQUESTS * 1e6


class Best:
    """The best loads of a route so far."""

    def __init__(self) -> None:
        self.per_second, self.cost_us = 0.0, math.inf

    def note(self, per_second: float, cost_us: float) -> None:
        self.per_second, self.cost_us = max(self.per_second, per_second), min(self.cost_us, cost_us)

    def share_of(self, other: "Best") -> tuple[float, float]:
        """Of the other's rate, by requests per second and by processor time."""
        return self.per_second / other.per_second, other.cost_us / self.cost_us

    def __str__(self) -> str:
        return f"{self.per_second:.0f}/s, {self.cost_us:.0f} us"


def test_the_route_is_as_fast_as_our_own(service: Service, nodes: dict[str, Node], database: str) -> None:
    programs.need("wrk")
    best, lane = {name: Best() for name in ROUTES}, Best()
    for number in range(LOADS if IS_FULL else MOST_LOADS):
        for name in list(ROUTES)[:: 1 if number % 2 else -1]:
            best[name].note(*load(nodes["ordinary"], service.api_key, database, ROUTES[name]))
        if not IS_FULL and number + 1 >= LOADS and max(best["/sql"].share_of(best["/v1/query"])) >= AT_LEAST:
            break
    for _ in range(2):
        lane.note(*load(nodes["lane"], service.api_key, database, QUERY))
    shares = best["/sql"].share_of(best["/v1/query"])
    shown = (
        f"POST /sql {best['/sql']}; POST /v1/query {best['/v1/query']}: {shares[0]:.3f} of the rate,"
        f" {shares[1]:.3f} by processor time; on the fast lane, POST /v1/query has {lane}"
    )
    print(shown)
    assert max(shares) >= AT_LEAST, shown
