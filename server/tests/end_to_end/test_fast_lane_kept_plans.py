"""What a connection keeps of its requests: the plan of the last one, if its body was small."""

import asyncio
import gc
import json

import pytest

from plainsql_server.extension_modules import COMPILED
from server.tests.end_to_end.fast_lane import wire_to_this_process
from server.tests.end_to_end.wires import Wire
from server.tests.service import Service

if COMPILED:
    from plainsql_server.lane.plans.plan import MAX_PLANS, QueryPlan

pytestmark = pytest.mark.compiled

LIMIT_BYTES = 1024


def is_in_memory(text: str) -> bool:
    """Whether this process has a plan with this text."""
    plans = [each for each in gc.get_objects() if isinstance(each, QueryPlan)]
    return any(text in step.sql for plan in plans for step in plan.steps)


def push_out(wire: Wire) -> None:
    """Has so many other plans made that the process drops its oldest. Now and then, one does not take the lane."""
    for number in range(MAX_PLANS + 100):
        assert b'"success":true' in wire.query({"sql": f"select {number} as n"})[1]


@pytest.mark.parametrize(("size", "is_kept"), [(LIMIT_BYTES, True), (LIMIT_BYTES + 1, False)])
async def test_a_connection_keeps_the_plan_of_a_small_body_only(service: Service, size: int, is_kept: bool) -> None:
    async with wire_to_this_process(service, "/v1/query") as wire:
        other = Wire(wire.port, wire.key)
        text = f"select {size} as kept"
        while not is_in_memory(text):
            await asyncio.to_thread(wire.query, json.dumps({"sql": text}).ljust(size).encode())
        await asyncio.to_thread(push_out, other)
        assert is_in_memory(text) == is_kept
        other.close()
