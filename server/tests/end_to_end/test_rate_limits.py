"""The rate limit as customers meet it: data-plane processes of the test's own, on a Redis of the test's own."""

import asyncio
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from plainsql_server.dev.ports import free_port
from server.tests import plain_http
from server.tests.alias import running_alias
from server.tests.end_to_end.error_shape import error_of
from server.tests.load import Client, Node, running_node, size
from server.tests.redis_server import RedisServer, running_redis
from server.tests.service import Service

# The whole proof takes ten; one shows that it works.
RUNS = size("PLAINSQL_TEST_LIMIT_RUNS", 1)
# So many rounds does each busy organization make; at most 28, so that a minute's permits are enough.
ROUNDS = size("PLAINSQL_TEST_LIMITER_ROUNDS", 5)
ROUND, BURSTS, CLIENTS = 192, 4, 8
BUSY = 4 if ROUNDS >= 20 else 1
# The full size is 28. A request takes the fast lane, and so little time that a permit, with its part of a round trip to
# Redis, is a tenth of it. A few rounds cannot tell that.
LIMITER_AT_LEAST = 0.85 if ROUNDS >= 20 else 0.6
_ANSWER_LIMIT_S = 90


@dataclass
class Stage:
    """Three nodes that share a Redis."""

    service: Service
    redis: RedisServer
    nodes: list[Node]
    alias_port: int
    _made: list[str] = field(default_factory=list)

    @property
    def last_organization(self) -> str:
        return self._made[-1]

    def new_organization(self, tier: str = "free") -> str:
        """The key of a fresh organization with a database."""
        name = f"limited-{id(self)}-{len(self._made)}"
        self._made.append(name)
        self.service.customers.add_organization(name, tier)
        self.service.customers.add_database("main", name)
        return self.service.new_key("write", org=name)


@pytest.fixture(scope="module")
def stage(service: Service) -> Iterator[Stage]:
    with running_redis() as redis, ExitStack() as stack:
        settings = {"redis_url": redis.url, "metrics_port": 0}
        nodes = [stack.enter_context(running_node(service.directory_dsn, **settings)) for _ in range(3)]
        alias_port = stack.enter_context(running_alias(*(node.port for node in nodes)))
        yield Stage(service, redis, nodes, alias_port)


def ask(node: Node, key: str, path: str = "/v1/query", **arguments: object) -> httpx.Response:
    url = f"http://127.0.0.1:{node.port}{path}"
    body: dict[str, Any] = {"json": {"sql": "select 1"}} | arguments
    return plain_http.post(url, headers={"Authorization": f"Bearer {key}"}, **body)


def left(response: httpx.Response) -> int:
    match = re.fullmatch(r'"org-(\w+)";r=(\d+);t=(\d+)', response.headers["ratelimit"])
    assert match, response.headers["ratelimit"]
    assert 0 <= int(match[3]) <= 62
    return int(match[2])


def test_every_authenticated_answer_has_the_policy_and_the_remaining_permits(stage: Stage) -> None:
    key = stage.new_organization()
    answers = [ask(stage.nodes[i % 3], key) for i in range(4)]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"org-free";q=200;w=60'}
    assert [left(answer) for answer in answers] == [199, 198, 197, 196]
    failed = ask(stage.nodes[0], key, json={"sql": "slect"})
    assert (failed.status_code, left(failed)) == (400, 195)


def test_a_request_without_the_scope_counts_like_any_other(stage: Stage) -> None:
    stage.new_organization()
    key = stage.service.new_key("admin", org=stage.last_organization)
    answers = [ask(stage.nodes[i % 3], key) for i in range(3)]
    assert [(answer.status_code, left(answer)) for answer in answers] == [(403, 199), (403, 198), (403, 197)]
    error_of(answers[0], 403, "forbidden")


def test_an_open_route_and_an_unknown_caller_have_no_rate_limit(stage: Stage) -> None:
    health = plain_http.get(f"http://127.0.0.1:{stage.nodes[0].port}/health")
    unknown = ask(stage.nodes[0], "svc_k_nobody")
    assert unknown.status_code == 401
    assert not {"ratelimit", "ratelimit-policy"} & (set(health.headers) | set(unknown.headers))


def test_a_dedicated_organization_has_no_rate_limit_header(stage: Stage) -> None:
    answer = ask(stage.nodes[0], stage.service.api_key)
    assert answer.status_code == 200
    assert not {"ratelimit", "ratelimit-policy"} & set(answer.headers)


@pytest.mark.parametrize("run", range(RUNS))
async def test_exactly_200_of_1000_concurrent_requests_of_a_free_organization_are_accepted_by_three_nodes_and_the_alias(
    stage: Stage, run: int
) -> None:
    key = stage.new_organization()

    ports = [*(node.port for node in stage.nodes), stage.alias_port]

    async def one(port: int) -> int:
        async with Client(port, key) as client:
            return (await client.query("select 1")).status

    async with asyncio.timeout(_ANSWER_LIMIT_S):
        statuses = await asyncio.gather(*(one(ports[i % 4]) for i in range(1_000)))
    assert len(statuses) == 1_000
    assert {status: statuses.count(status) for status in set(statuses)} == {200: 200, 429: 800}


async def test_exactly_6000_requests_of_a_busy_organization_are_accepted_by_three_nodes(stage: Stage) -> None:
    """With leases, which each node has of its own, and which expire unused at the end."""
    key, limit = stage.new_organization("standard"), 6_000
    statuses: list[int] = []

    async def some(node: Node, seed: int) -> None:
        async with node.client(key) as client:
            while statuses.count(200) < limit:
                statuses.append((await client.query("select $1::int", seed)).status)
                if statuses[-1] != 200:
                    # A lease of another node must expire before there is one for this.
                    await asyncio.sleep(0.02)
            for _ in range(20):
                statuses.append((await client.query("select $1::int", seed)).status)

    async with asyncio.timeout(_ANSWER_LIMIT_S), asyncio.TaskGroup() as tasks:
        for seed in range(12):
            tasks.create_task(some(stage.nodes[seed % 3], seed))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == limit


async def test_a_rejected_request_has_the_usual_error_shape_and_a_retry_time(stage: Stage) -> None:
    key = stage.new_organization()
    async with stage.nodes[0].client(key) as client:
        statuses = [(await client.query("select 1")).status for _ in range(200)]
    assert set(statuses) == {200}
    refused = ask(stage.nodes[1], key)
    error = error_of(refused, 429, "rate_limited")
    assert error["outcome"] == "not_executed"
    assert error["retryable"] is True
    assert "200" in error["message"]
    assert "the free tier" in error["message"]
    assert 0 < error["retry_after_ms"] <= 61_200
    assert int(refused.headers["retry-after"]) == -(-error["retry_after_ms"] // 1000)
    assert left(refused) == 0
    assert refused.headers["ratelimit-policy"] == '"org-free";q=200;w=60'
    error_of(ask(stage.nodes[2], key, "/v1/transaction", json={"statements": ["select 1"]}), 429, "rate_limited")
    # Another organization is none of its business.
    assert ask(stage.nodes[1], stage.new_organization()).status_code == 200


@pytest.mark.timing
async def test_the_limiter_costs_a_busy_organization_little_and_seldom_a_round_trip(service: Service) -> None:
    """The processor's time for a request of an organization with a limit, beside one of an organization without."""
    metrics_port = free_port()
    ratios: list[float] = []
    with running_redis() as redis, running_node(
        service.directory_dsn, redis_url=redis.url, metrics_port=metrics_port
    ) as node:  # fmt: skip
        before = round_trips(metrics_port)
        for _ in range(BUSY):
            async with AsyncExitStack() as stack:
                limited = await busy_clients(stack, service, node, "standard")
                unlimited = await busy_clients(stack, service, node, "dedicated")
                ratios += [await cost_ratio(node, unlimited, limited) for _ in range(ROUNDS)]
        asked = round_trips(metrics_port) - before
    count = BUSY * (ROUNDS + 1) * ROUND
    low, ratio, high = statistics.quantiles(ratios, n=4)
    print(
        f"limiter: {ratio:.3f} of the requests per processor second, quartiles {low:.3f} and {high:.3f} "
        f"of {len(ratios)} rounds, {asked:.0f} trips for {count} requests"
    )
    assert asked < count / (50 if ROUNDS >= 20 else 8)
    # A few rounds are as far apart as their quartiles: the better ones tell what the limiter costs.
    assert (ratio if ROUNDS >= 20 else high) >= LIMITER_AT_LEAST


async def busy_clients(stack: AsyncExitStack, service: Service, node: Node, tier: str) -> list[Client]:
    """The clients of a fresh organization, which have made a round of requests already."""
    key = busy_key(service, tier)
    clients = [await stack.enter_async_context(node.client(key)) for _ in range(CLIENTS)]
    for _ in range(BURSTS):
        await burst(clients)
    return clients


async def cost_ratio(node: Node, *kinds: list[Client]) -> float:
    """What a round of the first costs the node's processor, by what one of the second costs.

    They take turns by bursts of some ten milliseconds, so that what else happens to the machine happens to both.
    """
    spent_s = [0.0, 0.0]
    for number in range(BURSTS):
        for kind in (0, 1) if number % 2 else (1, 0):
            began_s = processor_s(node)
            await burst(kinds[kind])
            spent_s[kind] += processor_s(node) - began_s
    return spent_s[0] / spent_s[1]


async def burst(clients: list[Client]) -> None:
    async def some(client: Client) -> None:
        for number in range(ROUND // BURSTS // CLIENTS):
            assert (await client.query("select $1::int", number)).succeeded

    await asyncio.gather(*map(some, clients))


def busy_key(service: Service, tier: str) -> str:
    name = f"busy-{time.monotonic_ns()}"
    service.customers.add_organization(name, tier)
    service.customers.add_database("main", name)
    return service.new_key("write", org=name)


def processor_s(node: Node) -> float:
    """What the node's one busy thread used, which the kernel counts in nanoseconds here and in ticks elsewhere."""
    return int(Path(f"/proc/{node.process.pid}/schedstat").read_text().split()[0]) / 1e9


def round_trips(metrics_port: int) -> float:
    text = plain_http.get(f"http://127.0.0.1:{metrics_port}/metrics").text
    match = re.search(r"^plainsql_limiter_round_trips_total (\S+)$", text, re.MULTILINE)
    assert match, text
    return float(match[1])


async def test_killing_redis_degrades_health_without_failures_or_open_limits(stage: Stage) -> None:
    key = stage.new_organization()
    node = stage.nodes[0]
    assert node.health().json()["checks"]["limiter"] == "ok"
    stage.redis.kill()
    try:
        # The share of one of these nodes and those of the service, with a tenth kept for the control plane.
        share = 180 // stage.service.data_processes()
        async with node.client(key) as client:
            statuses = [(await client.query("select 1")).status for _ in range(share + 10)]
        assert statuses == [200] * share + [429] * 10
        # The answer is remembered for a moment.
        end_s = time.monotonic() + 30
        while (health := node.health()).json()["status"] == "ok" and time.monotonic() < end_s:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.1)
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["checks"] == {"engine": "ok", "directory": "ok", "limiter": "degraded"}
    finally:
        stage.redis.start()
    assert '"event":"limiter","state":"lost"' in node.log.read_text()
