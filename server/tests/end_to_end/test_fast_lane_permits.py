"""A request that waits for a slot in a tier with a rate limit has its permit first, and takes no second one."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.fast_lane import MODES, wire_to_this_process
from server.tests.end_to_end.transactions import with_params
from server.tests.end_to_end.wires import SqlWire, Wire, counted
from server.tests.load import Node, running_node
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.compiled

WAITING = 6
SELECT = with_params("select $1::int as n", 1)


def left_of(head: bytes) -> int:
    """How many permits are left, as an answer says."""
    found = re.search(rb"ratelimit: [^\r]*;r=(\d+)", head)
    assert found is not None, head
    return int(found[1])


def in_threads(work: Callable[[Wire], None], wires: list[Wire]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(wire,)) for wire in wires]
    for thread in threads:
        thread.start()
    return threads


def new_key(service: Service, name: str) -> str:
    service.customers.add_organization(name, "free")
    service.customers.add_database("main", name)
    return service.new_key("write", org=name)


def metric(metrics_port: int, name: str) -> float:
    """What is waiting or running, over all cells."""
    values = counted(metrics_port).items()
    return sum(value for each, value in values if each.startswith(f"plainsql_cell_{name}"))


async def test_a_connection_whose_request_came_in_two_parts_and_was_handed_over_is_not_idle(service: Service) -> None:
    key = new_key(service, "lane-parts")
    # The lane has no use for a statement with a hint, and notices that when it has taken the permit.
    body = b'{"sql":"/*+ none */ select pg_sleep(2.5)::text as slept"}'
    async with wire_to_this_process(service, "/v1/query", key=key, timeout_keep_alive=1) as wire:
        other = await asyncio.to_thread(Wire, wire.port, key)
        for _ in range(2):
            await asyncio.to_thread(wire.query, SELECT)
        head = wire.bytes_of(body)[: -len(body)]
        wire.send(head)
        # What came before an answered request has been read.
        await asyncio.to_thread(other.query, SELECT)
        wire.send(body)
        answered = await asyncio.to_thread(wire.answer)
        other.close()
    assert b'"success":true' in answered[1]


@pytest.mark.parametrize("mode", MODES)
def test_requests_that_wait_for_a_slot_take_one_permit_each(service: Service, mode: str) -> None:
    key, metrics_port = new_key(service, f"lane-waiting-{mode}"), free_port()
    settings = {"fast_lane": mode, "pool_max_connections": 1, "metrics_port": metrics_port}
    with running_node(service.directory_dsn, **settings) as node:
        wires = [Wire(node.port, key) for _ in range(WAITING + 1)]
        for _ in range(3):
            for wire in wires:
                wire.query(SELECT)
        answers: list[tuple[bytes, bytes]] = []
        before = left_of(wires[0].query(SELECT)[0])
        with slot_held(service, node, wires[0], metrics_port):
            threads = in_threads(lambda wire: answers.append(wire.query(SELECT)), wires[1:])
            wait_for(lambda: metric(metrics_port, "waiting") == WAITING, 30, node.failures)
        for thread in threads:
            thread.join()
        assert b'"success":true' in wires[0].answer()[1]
        assert all(b'"rows":[{"n":1}]' in body for _, body in answers)
        assert left_of(wires[0].query(SELECT)[0]) == before - WAITING - 4
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_waits_in_vain_takes_one_permit(service: Service, mode: str) -> None:
    key, metrics_port = new_key(service, f"lane-in-vain-{mode}"), free_port()
    settings = {"fast_lane": mode, "pool_max_connections": 1, "metrics_port": metrics_port}
    with running_node(service.directory_dsn, **settings) as node:
        busy, late, gone = wires = [Wire(node.port, key) for _ in range(3)]
        for wire in wires * 3:
            wire.query({**SELECT, "timeout_ms": 150})
        before = left_of(busy.query(SELECT)[0])
        with slot_held(service, node, busy, metrics_port):
            refused = [late.query({**SELECT, "timeout_ms": 150})[1] for _ in range(2)]
            gone.send(gone.bytes_of(SELECT))
            wait_for(lambda: metric(metrics_port, "waiting") == 1, 30, node.failures)
            gone.close()
            wait_for(lambda: metric(metrics_port, "waiting") == 0, 30, node.failures)
        assert all(b'"code":"overloaded"' in body for body in refused)
        assert b'"success":true' in busy.answer()[1]
        assert left_of(busy.query(SELECT)[0]) == before - 7
        busy.close()
        late.close()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_the_limit_holds(service: Service, mode: str) -> None:
    key = new_key(service, f"lane-limit-{mode}")
    with running_node(service.directory_dsn, fast_lane=mode, metrics_port=0) as node:
        wire = Wire(node.port, key)
        granted = [b'"success":true' in wire.query(SELECT)[1] for _ in range(220)]
        wire.close()
    assert granted == [True] * 200 + [False] * 20


@pytest.mark.parametrize("mode", MODES)
def test_new_bodies_take_one_permit_each(service: Service, mode: str) -> None:
    """On the lane, they take it before they are read. It stays theirs if the lane has no use for them."""
    key = new_key(service, f"lane-new-{mode}")
    bodies = [
        *({"sql": f"select {number} as n"} for number in range(5)),
        *(with_params(f"select $1::int + {number} as n", 1) for number in range(5)),
        *(with_params(f"select $1::int[] as n{number}", [1]) for number in range(5)),
        *({"sql": "select 1 as n", "timeout_ms": 50 + number} for number in range(5)),
        *(with_params(f"select 1 as n{number}", database="nope") for number in range(5)),
    ]
    with running_node(service.directory_dsn, fast_lane=mode, metrics_port=0) as node:
        wire = Wire(node.port, key)
        for _ in range(2):
            wire.query(SELECT)
        before = left_of(wire.query(SELECT)[0])
        for number, body in enumerate(bodies, 1):
            assert left_of(wire.query(body)[0]) == before - number, body
        wire.close()


@pytest.mark.parametrize("mode", MODES)
def test_statements_for_the_neon_driver_take_one_permit_each(service: Service, mode: str) -> None:
    key = new_key(service, f"lane-sql-{mode}")
    statement = {"query": "select $1::int as n", "params": ["1"]}
    bodies: list[dict[str, Any]] = [
        *[statement] * 5, {**statement, "params": ["x"]}, {"query": "select generate_series(1, 40)"},
        {"query": "select 1"}, {"queries": [statement, statement]}, {"query": "select 1 / $1::int", "params": ["0"]},
        {"query": "begin"}, {}, {**statement, "params": [[1]]}, *[statement] * 5,
    ]  # fmt: skip
    with running_node(service.directory_dsn, fast_lane=mode, metrics_port=0) as node:
        wire = SqlWire(node.port, key)
        for _ in range(2):
            wire.query(statement)
        before = left_of(wire.query(statement)[0])
        for number, body in enumerate(bodies, 1):
            assert left_of(wire.query(body)[0]) == before - number, body
        wire.close()


def test_a_body_without_a_permit_is_not_read(service: Service) -> None:
    key, metrics_port = new_key(service, "lane-unread"), free_port()
    with running_node(service.directory_dsn, fast_lane="on", metrics_port=metrics_port) as node:
        wire = Wire(node.port, key)
        while b'"success":true' in wire.query(SELECT)[1]:
            pass
        before = counted(metrics_port)
        for number in range(10):
            assert b'"code":"rate_limited"' in wire.query(with_params(f"select $1::int[] as n{number}", [1]))[1]
        wire.close()
        after = counted(metrics_port)
    grown = {reason: after[passed(reason)] - before[passed(reason)] for reason in ("body", "rate_limit")}
    assert grown == {"body": 0, "rate_limit": 10}


def passed(reason: str) -> str:
    return f'plainsql_lane_passed_total{{reason="{reason}"}}'


@contextmanager
def slot_held(service: Service, node: Node, wire: Wire, metrics_port: int) -> Iterator[None]:
    """A statement has the only slot until the end of the block."""
    name = json.loads(wire.query({"sql": "select current_database() as name"})[1])["rows"][0]["name"]
    assert b'"success":true' in wire.query({"sql": "create table held (n int)"})[1]
    with service.engine(name) as engine, engine.transaction():
        engine.execute("lock table held")
        wire.send(wire.bytes_of({"sql": "select count(*) from held"}))
        wait_for(lambda: metric(metrics_port, "running") == 1, 30, node.failures)
        yield
