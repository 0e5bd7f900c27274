"""What the tests of the fast lane share: a node for each of its modes, and requests that go to all of them.

One node has the lane off. The others have it on, or end it after each of its steps. The same requests go to all of
them, several times on one connection, so that the lane has learned what it can, and the answers must be the same bytes
but for ids and times.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

from plainsql_server.assembly import Observer, build_data_application
from plainsql_server.dev.ports import free_port
from plainsql_server.settings import Settings
from server.tests.end_to_end.wires import SqlWire, Wire, counted, kept_by_lane, same
from server.tests.http_server import port_of, started
from server.tests.load import Node, running_node
from server.tests.sealing import keys_of
from server.tests.service import Service

MODES = ("off", "on", "sent", "arrived", "done")
ROUNDS = 3


@contextmanager
def nodes_of_all_modes(service: Service) -> Iterator[dict[str, Node]]:
    """A node for each mode of the lane."""
    with ExitStack() as stack:
        yield {
            mode: stack.enter_context(running_node(service.directory_dsn, fast_lane=mode, metrics_port=free_port()))
            for mode in MODES
        }


@contextmanager
def wires_of(nodes: dict[str, Node], key: str, head: str, path: str = "/v1/query") -> Iterator[dict[str, Wire]]:
    """A connection to each node."""
    opened = {mode: Wire(node.port, key, head, path) for mode, node in nodes.items()}
    try:
        yield opened
    finally:
        for wire in opened.values():
            wire.close()


@contextmanager
def sql_wires_of(nodes: dict[str, Node], key: str, database: str, head: str = "") -> Iterator[dict[str, Wire]]:
    """A connection to each node, on which requests come as from the Neon driver."""
    opened: dict[str, Wire] = {mode: SqlWire(node.port, key, head, database=database) for mode, node in nodes.items()}
    try:
        yield opened
    finally:
        for wire in opened.values():
            wire.close()


@asynccontextmanager
async def wire_to_this_process(
    service: Service, path: str, *, key: str | None = None, head: str = "", **options: Any
) -> AsyncIterator[Wire]:
    """A connection to a data plane in this process. The options are uvicorn's."""
    settings = Settings(directory_dsn=service.directory_dsn, secrets_keys=keys_of(service.directory_dsn))
    application = build_data_application(settings, Observer())
    server = await started(application, **options)
    wire = await asyncio.to_thread(Wire, port_of(server), key or service.api_key, head, path)
    try:
        yield wire
    finally:
        wire.close()
        await server.shutdown()


def assert_same(wires: dict[str, Wire], bodies: list[dict[str, Any] | bytes], tries: int = 1) -> None:
    """All nodes must give the same answer: at the first try, or at one of several if the answer depends on time."""
    for _ in range(ROUNDS):
        for body in bodies:
            for left in reversed(range(tries)):
                answers = {mode: same(wire.query(body)) for mode, wire in wires.items()}
                different = [mode for mode in MODES[1:] if answers[mode] != answers["off"]]
                if not different:
                    break
                assert left, (different, body)


def kept_by(node: Node) -> float:
    """How many requests the lane of a node took and kept."""
    return kept_by_lane(counted(int(node.settings["PLAINSQL_METRICS_PORT"])))


def logged(node: Node, path: str = "/v1/query") -> list[dict[str, Any]]:
    """The lines that a node has logged about requests for a route."""
    lines = node.log.read_text().splitlines()
    return [json.loads(line) for line in lines if f'"route":"{path}"' in line]
