"""A request that libpq does not take whole: its connection is closed, and its outcome is what it says."""

import asyncio
import json
import sys
from typing import Any, cast

import pytest

from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.pool.admission_queue import AdmissionQueue, TenantQueue
from plainsql_server.engine.pool.pool import Pool
from server.tests.end_to_end.fast_lane import wire_to_this_process
from server.tests.end_to_end.transactions import with_params
from server.tests.end_to_end.wires import Wire
from server.tests.service import Service

pytestmark = pytest.mark.compiled

SELECT = with_params("select $1::int as n", 1)


@pytest.fixture(scope="module")
def head(service: Service) -> str:
    """For a database without code: what needs guards does not take the lane."""
    service.customers.add_database("lane-unsent", "dev")
    return "X-Database: lane-unsent\r\n"


async def answer(wire: Wire, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await asyncio.to_thread(wire.query, body))[1])
    return found


def refuse_next(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Has libpq refuse part of the lane's next request. Returns the connection, once that has happened.

    Out of its pipeline mode, libpq takes one statement, and no sync. The lane calls `take_free` before it sends.
    """
    refused: list[Connection] = []
    real = AdmissionQueue.take_free

    def take_free(admission: AdmissionQueue, queue: TenantQueue) -> bool:
        is_taken = real(admission, queue)
        is_of_lane = sys._getframe(1).f_code is not Pool.acquire.__code__
        if is_taken and is_of_lane and queue.idle and not refused:
            connection = cast("Connection", queue.idle[-1])
            connection.pgconn.exit_pipeline_mode()
            refused.append(connection)
        return is_taken

    monkeypatch.setattr(AdmissionQueue, "take_free", take_free)
    return refused


async def refused_answer(wire: Wire, body: dict[str, Any], refused: list[Connection]) -> dict[str, Any]:
    """The answer to the request of which libpq has refused a part. Now and then, one does not take the lane."""
    while True:
        found = await answer(wire, body)
        if refused:
            assert [connection.is_open for connection in refused] == [False]
            return found


async def test_a_transaction_without_its_commit_runs_on_another_connection(
    service: Service, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_to_this_process(service, "/v1/transaction", head=head) as wire:
        found = await refused_answer(wire, {"statements": [SELECT, SELECT]}, refuse_next(monkeypatch))
        assert [each["rows"] for each in found["results"]] == [[{"n": 1}], [{"n": 1}]]


async def test_a_query_whose_sync_was_refused_may_have_taken_effect(
    service: Service, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_to_this_process(service, "/v1/query", head=head) as wire:
        error = (await refused_answer(wire, SELECT, refuse_next(monkeypatch)))["error"]
        assert (error["code"], error["outcome"]) == ("connection_lost", "unknown")
        assert (await answer(wire, SELECT))["rows"] == [{"n": 1}]
