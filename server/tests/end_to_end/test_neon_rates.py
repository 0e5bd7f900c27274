"""What a request to POST /sql costs, beside the same statement by POST /v1/query on the ordinary path.

POST /sql doesn't take the fast lane. It is off for the comparison; a third node, with the lane on, is measured beside
it. Each round has a load of each, in turns, and the medians of all rounds are compared. The gate compares processor
time alone, which a busy machine hardly changes, with a bar that only a defect misses; `make soak PART=engine` also
compares requests per second.
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

AT_LEAST = 0.95 if IS_FULL else 0.8
# In full size only: of the rate, a busy machine takes as much as a defect, such as one that waits.
RATE_AT_LEAST = 0.8
ROUNDS = size("PLAINSQL_TEST_NEON_ROUNDS", 5)
REQUESTS = size("PLAINSQL_TEST_NEON_REQUESTS", 1_000)
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
        return median(self.costs_us)

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


def test_a_request_costs_what_one_of_our_own_costs(service: Service, nodes: dict[str, Node], database: str) -> None:
    programs.need("wrk")
    sql, query = Loads(nodes["ordinary"], SQL_ROUTE), Loads(nodes["ordinary"], QUERY_ROUTE)
    lane = Loads(nodes["lane"], QUERY_ROUTE)
    for number in range(ROUNDS):
        for loads in (sql, query, lane)[:: 1 if number % 2 else -1]:
            run_load(loads, service.api_key, database)
    by_cost, by_rate = query.cost_us / sql.cost_us, sql.rate / query.rate
    shown = (
        f"POST /sql {sql}; POST /v1/query {query}, on the fast lane {lane}: {by_cost:.3f} by processor time,"
        f" {by_rate:.3f} of the rate; of the fast lane's, {lane.cost_us / sql.cost_us:.3f} and"
        f" {sql.rate / lane.rate:.3f}"
    )
    print(shown)
    assert by_cost >= AT_LEAST, shown
    assert by_rate >= RATE_AT_LEAST or not IS_FULL, shown
