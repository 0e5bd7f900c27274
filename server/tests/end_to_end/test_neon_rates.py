"""What a lookup of one row costs by POST /sql, beside the same by POST /v1/query, with the fast lane and without it.

Each round has a load of each, in turns, on eight connections of one caller. The median of the rounds' ratios counts. Of
processor time, the rounds that took the least are compared, too, because what else the machine does only adds to it. A
machine that is fast for one round distorts the one, and one that is slow for many the other; a defect both. The gate
compares processor time alone, with a bar that only a defect misses, because the machine is busy; `make soak
PART=engine` has a closer one, and also compares requests per second.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import pytest

from bench.loads import posts
from bench.processes import cpu_s
from bench.workloads import Post
from server.tests import programs
from server.tests.load import IS_FULL, Node, running_node, size
from server.tests.service import Service

pytestmark = pytest.mark.timing

AT_LEAST = 0.95 if IS_FULL else 0.7
# In full size only: of the rate, a busy machine takes as much as a defect, such as one that waits.
RATE_AT_LEAST = 0.8
ROUNDS = size("PLAINSQL_TEST_NEON_ROUNDS", 7)
REQUESTS = size("PLAINSQL_TEST_NEON_REQUESTS", 3_000)
CONNECTIONS = 8
# Only a service that hangs takes so long.
LOAD_SECONDS = 60
TABLE = "neon_rates"
SQL = f"select id, amount from {TABLE} where id = $1"
NEON = {"Neon-Raw-Text-Output": "true", "Neon-Array-Mode": "true"}
SQL_ROUTE = Post("/sql", {"query": SQL, "params": ["<bid>"]})
QUERY_ROUTE = Post("/v1/query", {"sql": SQL, "params": ["<bid>"], "row_format": "array"})


@dataclass
class Loads:
    """The loads of a route on a node: of each, requests per second, and the processor time of a request."""

    node: Node
    post: Post
    rates: list[float] = field(default_factory=list)
    costs_us: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def cost_us(self) -> float:
        return min(self.costs_us)

    def __str__(self) -> str:
        return f"{self.rate:.0f}/s, {self.cost_us:.0f} us"


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


def run_load(loads: Loads, key: str, database: str) -> None:
    headers = {"Content-Type": "application/json"}
    if loads.post is QUERY_ROUTE:
        headers |= {"Authorization": f"Bearer {key}", "X-Database": database}
    else:
        headers |= {"Neon-Connection-String": f"postgresql://app:{key}@localhost/{database}", **NEON}
    process, url = loads.node.process.pid, f"http://127.0.0.1:{loads.node.port}"
    began_s = cpu_s(process)
    done = posts(url, headers, loads.post, CONNECTIONS, LOAD_SECONDS, scale=1, at_most=REQUESTS)
    loads.costs_us.append((cpu_s(process) - began_s) / REQUESTS * 1e6)
    loads.rates.append(done.per_second)


def compared(loads: dict[str, dict[str, Loads]], lane: str) -> tuple[float, float, str]:
    """What POST /sql has of our own route, by processor time and by rate, and both in words."""
    sql, query = loads[lane]["sql"], loads[lane]["query"]
    of_rounds = median([ours / theirs for ours, theirs in zip(query.costs_us, sql.costs_us, strict=True)])
    by_cost = max(of_rounds, query.cost_us / sql.cost_us)
    by_rate = median([theirs / ours for ours, theirs in zip(query.rates, sql.rates, strict=True)])
    return by_cost, by_rate, f"{lane}: POST /sql {sql}; POST /v1/query {query}: {by_cost:.3f} and {by_rate:.3f}"


def test_a_request_costs_what_one_of_our_own_costs(service: Service, nodes: dict[str, Node], database: str) -> None:
    programs.need("wrk")
    loads = {name: {"sql": Loads(node, SQL_ROUTE), "query": Loads(node, QUERY_ROUTE)} for name, node in nodes.items()}
    for number in range(ROUNDS):
        for each in [each for of_node in loads.values() for each in of_node.values()][:: 1 if number % 2 else -1]:
            run_load(each, service.api_key, database)
    results = [compared(loads, name) for name in nodes]
    # Both, also if one misses its bar.
    print(*[shown for _, _, shown in results], sep="\n")
    for by_cost, by_rate, shown in results:
        assert by_cost >= AT_LEAST, shown
        assert by_rate >= RATE_AT_LEAST or not IS_FULL, shown
