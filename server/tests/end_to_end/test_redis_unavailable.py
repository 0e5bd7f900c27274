"""Redis killed and started again under load: no request fails because of it, no limit opens, and it is reported."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from plainsql_server.dev.ports import choose_ports
from server.tests import plain_http
from server.tests.load import Client, NoAnswer, Node, running_node
from server.tests.redis_server import RedisServer, running_redis
from server.tests.service import Service

pytestmark = pytest.mark.chaos

LIMIT = 200
# One of three nodes without Redis; a tenth of the limit is the control plane's.
SHARE = LIMIT * 9 // 10 // 3
_NOTICED_LIMIT_S = 60.0


@dataclass
class Stage:
    """Three nodes that share a Redis, and where their metrics are."""

    service: Service
    redis: RedisServer
    nodes: list[Node]
    metrics_ports: list[int]

    def new_key(self, tier: str) -> str:
        name = f"away-{tier}-{time.monotonic_ns()}"
        self.service.customers.add_organization(name, tier)
        self.service.customers.add_database("main", name)
        return self.service.new_key("write", org=name)

    def degraded(self) -> list[float]:
        """What the metrics of each node say."""
        return [metric(port, "plainsql_limiter_degraded") for port in self.metrics_ports]


@dataclass
class Load:
    """Requests of one organization to all nodes, one after the other on each connection, until it is stopped."""

    key: str
    pause_s: float
    statuses: Counter[int] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    done: bool = False

    async def run(self, nodes: list[Node]) -> None:
        await asyncio.gather(*(self._ask(node.client(self.key)) for node in nodes))

    async def goes_on(self) -> None:
        """Waits until some more requests were accepted."""
        before = self.statuses[200]
        await until(lambda: self.statuses[200] > before + 30)

    async def _ask(self, client: Client) -> None:
        async with client:
            while not self.done:
                try:
                    answer = await client.query("select 1")
                    self.statuses[answer.status] += 1
                    self.codes[answer.code] += 1
                except NoAnswer:
                    self.lost += 1
                await asyncio.sleep(self.pause_s)


@pytest.fixture(scope="module")
def stage(service: Service) -> Iterator[Stage]:
    with running_redis() as redis, ExitStack() as stack:
        ports = list(choose_ports({f"metrics{number}": 0 for number in range(3)}).values())
        nodes = [
            stack.enter_context(running_node(service.directory_dsn, redis_url=redis.url, metrics_port=metrics_port))
            for metrics_port in ports
        ]
        service.data_processes()
        yield Stage(service, redis, nodes, ports)


def metric(port: int, name: str) -> float:
    match = re.search(rf"^{name} (\S+)$", plain_http.get(f"http://127.0.0.1:{port}/metrics").text, re.MULTILINE)
    assert match, name
    return float(match[1])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_NOTICED_LIMIT_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110  # other processes are watched
            await asyncio.sleep(0.05)


async def under(loads: list[Load], nodes: list[Node], work: Callable[[], Awaitable[None]]) -> None:
    """Does the work while the loads run."""
    running = [asyncio.create_task(load.run(nodes)) for load in loads]
    try:
        await work()
    finally:
        for load in loads:
            load.done = True
        await asyncio.gather(*running)


async def test_redis_killed_and_started_again_under_load_fails_no_request_and_opens_no_limit(stage: Stage) -> None:
    """One organization floods with all that it may send and more, one keeps well within its share of every node."""
    flood, modest = Load(stage.new_key("free"), 0.01), Load(stage.new_key("standard"), 0.05)

    async def kill_and_start() -> None:
        await until(lambda: flood.statuses[200] == LIMIT and modest.statuses[200] > 30)
        await asyncio.to_thread(stage.redis.kill)
        await until(lambda: stage.degraded() == [1.0] * 3)
        await modest.goes_on()
        await asyncio.to_thread(stage.redis.start)
        await until(lambda: all('"state":"warming"' in node.log.read_text() for node in stage.nodes))
        await modest.goes_on()

    began_s = time.monotonic()
    try:
        await under([flood, modest], stage.nodes, kill_and_start)
    finally:
        if stage.redis.process is None:
            stage.redis.start()
    took_s = time.monotonic() - began_s
    print(f"redis away: {took_s:.1f} s, flood {dict(flood.statuses)}, modest {dict(modest.statuses)}")
    assert took_s < 55, "the first permits are back: the count below would not be that of one window"
    assert (flood.lost, modest.lost) == (0, 0)
    # An organization that stays within its share notices nothing.
    assert set(modest.statuses) == {200}
    assert set(flood.statuses) == {200, 429}
    # Each node counts what it gave before against its share, so that only one that gave less may give more.
    assert LIMIT <= flood.statuses[200] <= LIMIT + 2 * SHARE
    for node in stage.nodes:
        log = node.log.read_text()
        assert '"event":"limiter","state":"lost"' in log
        assert '"event":"limiter","state":"warming"' in log
        assert not [line for line in log.splitlines() if '"event":"failure"' in line]
