"""A connection that was closed is gone at once, not when the garbage collector comes by."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from plainsql_server.core.principal import Scope
from plainsql_server.data_plane.databases import Databases
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.principals import Principals
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.contract import Contract
from plainsql_server.http.app.routes import scoped_route
from plainsql_server.http.data.query_body import QueryBody
from plainsql_server.http.server.accepting.connections import ConnectionLimits, Connections
from plainsql_server.http.server.protocol import ClientTimeouts, FastPathProtocol
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response
from plainsql_server.lane.opening import Doors, Observers, opened_lane
from plainsql_server.limits.permits import Permits
from plainsql_server.logs import Log
from plainsql_server.metrics import Metrics
from server.tests.http_server import port_of, started

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

HEAD = (
    b"POST /v1/query HTTP/1.1\r\nhost: x\r\nauthorization: Bearer svc_k_" + b"x" * 38 + b"\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
BODY = b'{"sql":"select 1"}'


class Echo:
    """Answers every request with its body, where the lane does not."""

    def __init__(self) -> None:
        self.readiness = Readiness(0)
        self.timeouts = ClientTimeouts(10.0, 10.0)
        self.connections = Connections(ConnectionLimits(total=100, per_address=0, request_s=10.0, idle_s=10.0))
        self.lane: Any = None
        self.seen: list[weakref.ref[FastPathProtocol]] = []

    async def respond(self, request: Request) -> Response | None:
        self.seen.append(weakref.ref(cast("FastPathProtocol", request.channel.connection)))
        return Response(200, request.body, [(b"content-length", b"%d" % len(request.body))])

    async def __call__(self, _scope: object, _receive: object, _send: object) -> None:
        raise AssertionError("the fast path does not call this")


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echo, int]]:
    # Nothing is looked up here, so nothing needs a directory.
    echo, freshness, nowhere = Echo(), Freshness(1_000, 60_000, 0), cast("Directory", None)
    contract = Contract(body=QueryBody, answers={}, errors=())
    doors = Doors(
        Principals(nowhere, freshness), Databases(nowhere, freshness),
        Pools(PoolLimits(1, 1, 1), 1_000, lambda _: None), cast("Permits", None), echo.readiness, freshness,
        [scoped_route("POST", "/v1/query", Scope.READ, "Nothing", cast("Any", None), contract=contract)],
    )  # fmt: skip
    with opened_lane(doors, Observers(Log(), Metrics(), Tally(nowhere, 1_000, lambda _: None)), "on") as echo.lane:
        server = await started(echo, lifespan="off")
        try:
            yield echo, port_of(server)
        finally:
            await server.shutdown()


async def test_a_closed_connection_leaves_nothing_for_the_garbage_collector() -> None:
    assert COMPILED
    async with serving() as (echo, port):
        gc.collect()
        gc.disable()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(HEAD % len(BODY) + BODY)
                await reader.readuntil(BODY)
            passed = echo.lane.lane.passed.by_name()
            assert {name: count for name, count in passed.items() if count} == {"head": 1, "caller": 2}
            writer.close()
            async with asyncio.timeout(30):
                while any(seen() is not None for seen in echo.seen):  # noqa: ASYNC110  # the server closes it
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()
