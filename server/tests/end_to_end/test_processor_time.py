"""What a request takes of the service's processor on the fast lane: twice the bar of `make bench`, or what PostgreSQL
takes for it, whichever is more.

The short form of `python -m bench statements`, with the same statements; the best of three loads counts. The bars are
those of a fast machine. On a slow one, or if its host is busy, PostgreSQL takes longer for the same statements, too.
Without the lane, a request takes more than twice as much as PostgreSQL.
"""

from collections.abc import Iterator

import pytest

from bench.bars import BARS, SERVICE_US
from bench.loads import posts
from bench.processes import cpu_s
from bench.workloads import ROWS_PER_SCALE, STATEMENTS, Workload
from server.tests import programs
from server.tests.load import Node, running_node
from server.tests.service import Service

pytestmark = [pytest.mark.timing, pytest.mark.compiled]

LOADS = 3
CONNECTIONS = 16
REQUESTS = 5_000
# Only a service that hangs takes so long.
LOAD_SECONDS = 60


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = "processor-time"
    service.customers.add_database(name, "dev")
    service.query(
        f"create table pgbench_accounts as select aid, 0 as abalance from generate_series(1, {ROWS_PER_SCALE}) aid",
        database=name,
    )
    service.query("alter table pgbench_accounts add primary key (aid)", database=name)
    return name


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, fast_lane="on") as running:
        yield running


@pytest.mark.parametrize("workload", STATEMENTS, ids=[each.name for each in STATEMENTS])
def test_a_request_on_the_fast_lane_takes_little_processor_time(
    service: Service, node: Node, database: str, workload: Workload
) -> None:
    programs.need("wrk")
    headers = {
        "Authorization": f"Bearer {service.api_key}", "Content-Type": "application/json", "X-Database": database,
    }  # fmt: skip
    pids = node.process.pid, service.dev["pids"]["postgres"]
    took_us = [load_us(node, pids, headers, workload) for _ in range(LOADS)]
    shown = ", ".join(f"{of_service:.1f} (PostgreSQL: {of_engine:.1f})" for of_service, of_engine in took_us)
    print(f"{workload.name}: {shown} us of processor time a request")
    limit_us = 2 * BARS[workload.name][SERVICE_US]
    # On a slow machine, compared with PostgreSQL. Without the fast lane, it is several times as much.
    assert any(of_service <= max(limit_us, 1.5 * of_engine) for of_service, of_engine in took_us), shown


def load_us(node: Node, pids: tuple[int, int], headers: dict[str, str], workload: Workload) -> tuple[float, float]:
    """The processor time per request of a load, of each of these processes and its children."""
    began_s = [cpu_s(pid) for pid in pids]
    url = f"http://127.0.0.1:{node.port}"
    done = posts(url, headers, workload.service, CONNECTIONS, LOAD_SECONDS, scale=1, at_most=REQUESTS)
    took_s = [cpu_s(pid) - began for pid, began in zip(pids, began_s, strict=True)]
    assert done.requests == REQUESTS
    return took_s[0] / REQUESTS * 1e6, took_s[1] / REQUESTS * 1e6
