"""Several data planes behind nginx: a database's requests go to one of them, and losing one loses no more than that.

`PLAINSQL_TEST_FLEET_NODES=3` is the full size.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from server.tests import plain_http
from server.tests.alias import running_alias
from server.tests.fleet.stage import Fleet
from server.tests.fleet.writers import TABLE, rows_of, writing
from server.tests.load import Node, running_node, size
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

_NODES = size("PLAINSQL_TEST_FLEET_NODES", 2)
# Stopping one politely is the full size's.
_SIGNALS = [signal.SIGKILL, signal.SIGTERM][: _NODES - 1]
_CLIENTS = 4


@pytest.fixture
def nodes(fleet: Fleet) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running_node(fleet.dsn)) for _ in range(_NODES)]


def ask(port: int, key: str, database: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} | ({"X-Database": database} if database else {})
    return plain_http.post(f"http://127.0.0.1:{port}/v1/query", headers=headers, json={"sql": "select 1"})


def served(node: Node) -> set[str]:
    """The ids of the requests that a node answered, by its own log."""
    lines = [json.loads(line) for line in node.log.read_text().splitlines() if '"event":"request"' in line]
    return {str(line["request_id"]) for line in lines if line["route"] == "/v1/query"}


def test_requests_to_a_database_go_to_one_node_and_databases_to_several(fleet: Fleet, nodes: list[Node]) -> None:
    # Whether there is such a database does not matter for where it is asked for.
    names = [f"db-{number}" for number in range(24)]
    homes: dict[str, set[int]] = {}
    with running_alias(*(node.port for node in nodes)) as port:
        for name in names:
            ids = {ask(port, fleet.key, name).json()["request_id"] for _ in range(2)}
            wait_for(lambda ids=ids: ids <= set().union(*map(served, nodes)), 30, lambda: "not logged")
            homes[name] = {index for index, node in enumerate(nodes) if ids & served(node)}
    assert all(len(home) == 1 for home in homes.values()), homes
    assert len(set().union(*homes.values())) > 1, homes


@pytest.mark.parametrize("how", _SIGNALS)
async def test_losing_a_node_loses_no_acknowledged_write(fleet: Fleet, nodes: list[Node], how: signal.Signals) -> None:
    with fleet.now.owner() as owner:
        owner.execute(TABLE)
    with running_alias(*(node.port for node in nodes)) as port:
        async with writing(port, fleet.key, clients=_CLIENTS, keyed=0) as written:
            await until(lambda: len(written.acknowledged) > 50)
            home = max(nodes, key=lambda node: len(served(node)))
            home.process.send_signal(how)
            before = len(written.acknowledged)
            await until(lambda: len(written.acknowledged) > before + 100)
    with fleet.now.owner() as owner:
        written.check(rows_of(owner))
    # What was under way there, which is one request of each client at the most.
    assert len(written.unknown) <= (_CLIENTS if how is signal.SIGKILL else 0), written.words
    assert written.longest_gap_s < 5
    print(f"\na node is lost by {how.name}: {len(written.acknowledged)} acknowledged, 0 lost, {dict(written.words)}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # other processes are watched
            await asyncio.sleep(0.01)
