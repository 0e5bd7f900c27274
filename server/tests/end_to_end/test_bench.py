"""GET /bench: what it measures, its bounds, and that nobody gains anything by it."""

import asyncio
import threading
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from plainsql_server.http.data.bench import BenchAnswer
from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.own_databases import OwnDatabase, new_database
from server.tests.load import STALL_S, Node, running_node
from server.tests.service import Service

OPERATIONS = ["point_read", "point_write", "transaction", "stream"]
# The contract's five seconds, and what a busy machine takes to make and remove the scratch data.
BOUND_S = 5 + 5


@pytest.fixture(scope="module")
def database(service: Service) -> OwnDatabase:
    return new_database(service)


@pytest.fixture(scope="module")
def second_process(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, metrics_port=0) as node:
        yield node


def bench(database: OwnDatabase, query: str = "") -> BenchAnswer:
    response = database.call("GET", f"/bench{query}")
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=BenchAnswer)


def test_four_kinds_of_work_are_measured_and_nothing_is_left_behind(database: OwnDatabase) -> None:
    measured = bench(database, "?iterations=10&concurrency=2")
    assert [operation.name for operation in measured.ops] == OPERATIONS
    for operation in measured.ops:
        assert (operation.count, operation.errors) == (10, 0)
        times = [operation.min_us, operation.p50_us, operation.p95_us, operation.p99_us, operation.max_us]
        assert None not in times
        assert times == sorted(times, key=lambda each: each or 0)
        assert operation.ops_per_s > 0
    assert (measured.iterations, measured.concurrency, measured.limited_by) == (10, 2, None)
    assert database.objects() == set()


def test_the_statements_are_really_run(database: OwnDatabase) -> None:
    count = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
    with database.service.engine() as engine:
        (before,) = engine.execute(count, (database.engine_name,)).fetchone() or (0,)
        bench(database, "?iterations=50")
        end = time.monotonic() + 70
        committed = 0
        # The engine counts with a delay, while its sessions are busy.
        while committed < 200 and time.monotonic() < end:
            (after,) = engine.execute(count, (database.engine_name,)).fetchone() or (0,)
            committed = after - before
    assert committed >= 200


@pytest.mark.parametrize(
    "query", ["?iterations=0", "?iterations=1001", "?concurrency=0", "?concurrency=17", "?iterations=x", "?seconds=9"]
)
def test_options_out_of_bounds_are_refused(database: OwnDatabase, query: str) -> None:
    error_of(database.call("GET", f"/bench{query}"), 400, "invalid_option")


def test_a_read_key_is_rejected(service: Service) -> None:
    error_of(service.call("GET", "/bench", key=tenants.read_key(service)), 403, "forbidden")


@pytest.mark.timing
async def test_a_benchmark_ends_in_time_and_excludes_others_in_every_process(
    database: OwnDatabase, second_process: Node
) -> None:
    began_s = time.monotonic()
    first = asyncio.create_task(asyncio.to_thread(bench, database, "?iterations=1000&concurrency=16"))
    headers = {"Authorization": f"Bearer {database.key}", "X-Database": database.name}
    urls = (database.service.data_url, f"http://127.0.0.1:{second_process.port}")
    refused: dict[str, httpx.Response] = {}
    while not await asyncio.to_thread(database.objects) and not first.done():  # noqa: ASYNC110  # another process'
        await asyncio.sleep(0.01)
    while len(refused) < len(urls) and not first.done():
        for url in urls:
            response = await asyncio.to_thread(database.service.http.get, f"{url}/bench?iterations=1", headers=headers)
            if response.status_code != 200:
                refused.setdefault(url, response)
    measured = await first
    assert time.monotonic() - began_s < BOUND_S + STALL_S
    assert set(refused) == set(urls)
    for response in refused.values():
        assert error_of(response, 409, "bench_running")["retryable"] is True
    assert all(operation.count > 0 for operation in measured.ops)
    assert database.objects() == set()
    bench(database, "?iterations=1")


def test_each_statement_counts_as_a_request(service: Service) -> None:
    service.customers.add_organization("measured", "free")
    database = new_database(service, service.new_key("write", "admin", org="measured"))
    # `dev` shares the limit between its planes; whatever the share, two hundred is the whole.
    measured = bench(database, "?iterations=200&concurrency=2")
    assert measured.limited_by == "rate_limit"
    assert sum(operation.count for operation in measured.ops) < 200
    assert database.objects() == set()
    error_of(database.call("GET", "/capabilities"), 429, "rate_limited")


def test_neighbours_are_served_meanwhile(database: OwnDatabase) -> None:
    neighbour = tenants.neighbour_key(database.service)
    running = threading.Thread(target=lambda: bench(database, "?iterations=1000&concurrency=16"))
    running.start()
    answers = []
    while running.is_alive():
        answers.append(database.service.call("POST", "/v1/query", key=neighbour, json={"sql": "select 1"}))
    running.join()
    assert len(answers) > 10
    assert all(response.json()["success"] for response in answers)


def test_a_disconnected_benchmark_leaves_nothing_behind(database: OwnDatabase) -> None:
    with pytest.raises(httpx.TimeoutException):
        database.call("GET", "/bench?iterations=1000&concurrency=4", timeout=1)
    end = time.monotonic() + 60
    while database.objects() and time.monotonic() < end:
        time.sleep(0.05)
    assert database.objects() == set()
