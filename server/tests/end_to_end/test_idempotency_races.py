"""The same key sent many times at once, to processes that are killed meanwhile: exactly one effect each.

`PLAINSQL_TEST_KEYS=1000 PLAINSQL_TEST_KEY_KILLS=10` is the full size.
"""

import asyncio
import random
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import pytest

from server.tests import plain_http
from server.tests.end_to_end.transactions import fresh_table
from server.tests.load import Node, running_node, size
from server.tests.service import Service

pytestmark = pytest.mark.chaos

KEYS = size("PLAINSQL_TEST_KEYS", 60)
KILLS = size("PLAINSQL_TEST_KEY_KILLS", 2)
SENDS = 5
KEYS_AT_ONCE = 6
ANSWER_LIMIT_S = 30


@dataclass
class Senders:
    """Clients that send each key five times at once, each until the work is reported as done."""

    nodes: Sequence[Node]
    api_key: str
    table: str
    keys: int = 0
    killing: bool = True
    answers: dict[str, set[bytes]] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        async with plain_http.async_client(timeout=ANSWER_LIMIT_S) as http, asyncio.TaskGroup() as group:
            for _ in range(KEYS_AT_ONCE):
                group.create_task(self._keep_sending(http))

    async def _keep_sending(self, http: httpx.AsyncClient) -> None:
        while self.keys < KEYS or self.killing:
            self.keys += 1
            key = secrets.token_hex(12)
            route = ("/v1/transaction", "/v1/query")[self.keys % 2]
            bodies = await asyncio.gather(*(self._until_done(http, route, key) for _ in range(SENDS)))
            self.answers[key] = set(bodies)

    async def _until_done(self, http: httpx.AsyncClient, route: str, key: str) -> bytes:
        statement: dict[str, object] = {"sql": f"insert into {self.table} (k) values ($1) returning n", "params": [key]}
        body: dict[str, object] = {"statements": [statement]} if route == "/v1/transaction" else statement
        async with asyncio.timeout(2 * ANSWER_LIMIT_S):
            while True:
                outcome = await self._send(http, route, key, body)
                if isinstance(outcome, bytes):
                    return outcome
                self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
                await asyncio.sleep(0.05)

    async def _send(self, http: httpx.AsyncClient, route: str, key: str, body: dict[str, object]) -> bytes | str:
        """The answer of success, or why there is none yet."""
        port = random.choice(self.nodes).port
        headers = {"Authorization": f"Bearer {self.api_key}", "Idempotency-Key": key}
        try:
            response = await http.post(f"http://127.0.0.1:{port}{route}", json=body, headers=headers)
        except httpx.TransportError as error:
            # No process listens, or it was killed: only the key makes it safe to send it again.
            return type(error).__name__
        content = response.json()
        if content["success"]:
            return response.content
        assert response.status_code in (409, 503), response.text
        assert content["error"]["outcome"] in ("not_executed", "rolled_back"), response.text
        return str(content["error"]["code"])


async def kill_often(nodes: Sequence[Node], senders: Senders) -> None:
    for kill in range(KILLS):
        done = len(senders.answers)
        async with asyncio.timeout(60):
            while len(senders.answers) < done + 5:  # noqa: ASYNC110  # other tasks and processes do the work
                await asyncio.sleep(0.01)
        node = nodes[kill % len(nodes)]
        node.process.kill()
        await asyncio.to_thread(node.process.wait)
        await asyncio.to_thread(node.start)
    senders.killing = False


@pytest.mark.timeout(1_800)
async def test_each_key_has_one_effect_though_it_is_sent_five_times_and_processes_are_killed(service: Service) -> None:
    table = fresh_table(service, "n serial, k text")
    with ExitStack() as stack:
        nodes = [stack.enter_context(running_node(service.directory_dsn, cell_max_connections=16)) for _ in range(2)]
        senders = Senders(nodes, service.api_key, table)
        async with asyncio.TaskGroup() as group:
            group.create_task(senders.run())
            group.create_task(kill_often(nodes, senders))
    effects = service.query(f"select count(*) as rows, count(distinct k) as keys from {table}")["rows"][0]
    print(f"keys {len(senders.answers)}, sends {SENDS} each, kills {KILLS}, {effects}, {senders.outcomes}")
    assert effects == {"rows": len(senders.answers), "keys": len(senders.answers)}
    assert [key for key, bodies in senders.answers.items() if len(bodies) != 1] == [], "one key, several answers"
