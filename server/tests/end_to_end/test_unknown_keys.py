"""A flood of well-formed keys that nobody has, and a caller who is known, whose every request is a look-up."""

import asyncio
from collections import Counter

from plainsql_server.core.credential import new_key
from server.tests.load import Client, NoAnswer, Node, running_node
from server.tests.service import Service

# Connections that flood, and how many requests the known caller makes meanwhile.
FLOOD = 32
REQUESTS = 50


async def flood(node: Node, statuses: Counter[int], done: asyncio.Event) -> None:
    while not done.is_set():
        # Another key with each request: what was refused before costs no look-up.
        async with Client(node.port, new_key().text) as client:
            try:
                statuses[(await client.query("select 1")).status] += 1
            except NoAnswer:
                statuses[0] += 1


async def test_a_flood_of_unknown_keys_is_refused_and_known_callers_are_served(service: Service) -> None:
    statuses: Counter[int] = Counter()
    done = asyncio.Event()
    # What is looked up is believed for no time, so that the known caller needs the directory as much as the flood.
    with running_node(service.directory_dsn, principal_cache_ms=0, channel_cache_ms=0) as node:
        async with node.client(service.api_key) as known:
            assert (await known.query("select 1")).succeeded
            flooding = [asyncio.create_task(flood(node, statuses, done)) for _ in range(FLOOD)]
            try:
                answers = [await known.query("select 1") for _ in range(REQUESTS)]
            finally:
                done.set()
                await asyncio.gather(*flooding)
        log = node.failures()
    print(f"unknown keys: {dict(statuses)} while {REQUESTS} of a known one were answered")
    assert all(answer.succeeded for answer in answers)
    assert statuses[401] > 0
    assert set(statuses) <= {401, 503}
    assert "directory" not in log
