"""If a client disconnects, its statement is cancelled, and no other.

`PLAINSQL_TEST_DISCONNECTS=100` and `PLAINSQL_TEST_MIXED=10000` are the full sizes.
"""

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from server.tests.load import STALL_S, Activity, Client, Node, all_of, new_tag, percentile, running_node, size
from server.tests.service import Service

DISCONNECTS = size("PLAINSQL_TEST_DISCONNECTS", 10)
MIXED = size("PLAINSQL_TEST_MIXED", 1_000)
CLIENTS = 16
GONE_WITHIN_S = 1.0
# More than the protocol's fast path takes.
LARGE = "/* " + "x" * 70_000 + " */"

SLEEP = "select pg_sleep(60)"
TRAP = """do $$ begin loop
  begin perform pg_sleep(60); exception when query_canceled then null; end;
end loop; end $$"""


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    service.query("do $$ begin end $$")
    # Fewer connections than clients, so that some go away while they wait for their turn.
    with running_node(service.directory_dsn, pool_max_connections=12) as running:
        yield running


@pytest.mark.parametrize(
    ("kind", "sql"), [("fast path", SLEEP), ("large body", f"{SLEEP} {LARGE}"), ("trapped cancel", TRAP)]
)
async def test_the_statement_of_a_disconnected_client_is_cancelled(
    service: Service, node: Node, kind: str, sql: str
) -> None:
    gone_s: list[float] = []

    async def disconnect(_: int) -> None:
        tag = new_tag()
        async with node.client(service.api_key) as client:
            await client.send(f"/* {tag} */ {sql}")
            await activity.begun(tag, "wait_event = 'PgSleep'")
        gone_s.append(await activity.gone(tag, time.monotonic()))

    async with Activity.of(service) as activity:
        await all_of(DISCONNECTS, disconnect)
    print(f"{kind}: gone {len(gone_s)} times, median {percentile(gone_s, 50):.3f} s, max {max(gone_s):.3f} s")
    assert len(gone_s) == DISCONNECTS
    assert max(gone_s) <= GONE_WITHIN_S + STALL_S


async def test_clients_that_disconnect_while_waiting_leave_the_queue(service: Service) -> None:
    """One connection is taken; a waiting client disconnects; the next one is served when it is free."""
    with running_node(service.directory_dsn, pool_max_connections=1) as narrow:
        tag = new_tag()
        async with narrow.client(service.api_key) as first, Activity.of(service) as activity:
            await first.send(f"/* {tag} */ select pg_sleep(60)")
            await activity.begun(tag)
            waiting = [narrow.client(service.api_key) for _ in range(20)]
            for client in waiting:
                await client.send("select pg_sleep(60)")
            # The service has read them all when it answers one that it got after them.
            async with narrow.client("svc_k_wrong") as probe:
                assert (await probe.query("select 1")).status == 401
            for client in waiting:
                client.drop()
            first.drop()
            async with narrow.client(service.api_key) as last:
                answer = await last.query("select 3 as n", timeout_ms=30_000)
            assert answer.succeeded, answer
            assert answer.elapsed_s <= GONE_WITHIN_S + STALL_S


class Mix:
    """One client's share of the mixed requests: unique values are asked for, and some requests are dropped."""

    def __init__(self, client: Client, share: int, seed: int) -> None:
        self._client = client
        self._share = share
        self._random = random.Random(seed)
        self._first_value = seed * 10_000_000
        self.dropped = 0
        self.right = 0
        self.wrong: list[object] = []

    async def run(self) -> None:
        async with self._client:
            await self._run()

    async def _run(self) -> None:
        for number in range(self._share):
            value = self._first_value + number
            await self._send(value)
            if self._random.random() < 0.3:
                # Sometimes at once, sometimes while it runs, sometimes about when it ends.
                await asyncio.sleep(self._random.choice([0, 0.001, 0.003, 0.01]) * self._random.random())
                self._client.drop()
                self.dropped += 1
                continue
            answer = await self._client.answer()
            if answer.succeeded and answer.value == value:
                self.right += 1
            else:
                self.wrong.append((value, answer))

    async def _send(self, value: int) -> None:
        kind = self._random.randrange(5)
        if kind == 0:
            await self._client.send("select $1::bigint as v", value)
        elif kind == 1:
            await self._client.send(f"select {value} as v, pg_sleep({self._random.random() / 100})")
        elif kind == 2:
            await self._client.send("insert into mixed values ($1) returning v", value)
        elif kind == 3:
            await self._client.send(f"select {value} as v, repeat('x', 20) from generate_series(1, 2000)")
        else:
            await self._client.send(f"select {value} as v, set_config('app.mine', '{value}', false)")


async def test_a_cancel_never_affects_another_request(service: Service, node: Node) -> None:
    service.query("create table if not exists mixed (v bigint)")
    mixes = [Mix(node.client(service.api_key), MIXED // CLIENTS, seed) for seed in range(1, CLIENTS + 1)]
    async with asyncio.timeout(100 + MIXED / 20), asyncio.TaskGroup() as group:
        for mix in mixes:
            group.create_task(mix.run())
    right, dropped = sum(mix.right for mix in mixes), sum(mix.dropped for mix in mixes)
    print(f"mixed: {right} right, {dropped} dropped")
    assert [wrong for mix in mixes for wrong in mix.wrong] == []
    assert right + dropped == MIXED // CLIENTS * CLIENTS
    assert dropped > MIXED / 5
    async with node.client(service.api_key) as client:
        assert (await client.query("select 1 as n")).value == 1
