"""A request with an idempotency key whose process dies at a step of two-phase commit, sent again: it is done once.

`PLAINSQL_TEST_STEP_CRASHES` above 1, as in `make soak PART=spanning`, tries every step.
"""

import asyncio
import secrets
from typing import Any

import httpx
import pytest

from plainsql_server.data_plane.spanning import SpanningStep
from server.tests import plain_http
from server.tests.consistency.two_cells import SIDES, TwoCells
from server.tests.load import Node, size

_UNDOING = (SpanningStep.UNDOING, SpanningStep.UNDONE)
_SOME = (SpanningStep.PREPARED, SpanningStep.DECIDED, SpanningStep.COMMIT_SENT_TO_ONE)
STEPS = [step for step in SpanningStep if step not in _UNDOING] if size("PLAINSQL_TEST_STEP_CRASHES", 1) > 1 else _SOME
_LIMIT_S = 60

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


async def send_until_answered(node: Node, two: TwoCells, body: dict[str, Any], key: str) -> tuple[int, httpx.Response]:
    """The answer, and how many requests had none."""
    headers = {"Authorization": f"Bearer {two.key}", "Idempotency-Key": key}
    unanswered = 0
    async with asyncio.timeout(_LIMIT_S):
        while True:
            async with plain_http.async_client(base_url=f"http://127.0.0.1:{node.port}", headers=headers) as http:
                try:
                    response = await http.post("/v1/transaction", json=body)
                except httpx.TransportError:
                    unanswered += 1
                else:
                    if response.status_code == 200:
                        return unanswered, response
                    assert response.status_code in (409, 503), response.text
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
async def test_a_keyed_spanning_request_is_executed_once_in_both_databases(
    two: TwoCells, node: Node, step: SpanningStep
) -> None:
    list_number = secrets.randbelow(2**31)
    append = "insert into lists values ($1, array[7]) on conflict (k) do update set v = lists.v || excluded.v"
    statements = [{"database": side, "sql": append, "params": [list_number]} for side in SIDES]
    two.crash_file.write_text(step.name)
    unanswered, response = await send_until_answered(node, two, {"statements": statements}, secrets.token_hex(8))
    assert unanswered >= 1, "nobody died"
    assert response.json()["transaction"]["participants"] == 2
    # What was decided before the process died was found, and not done again.
    was_decided = step.value >= SpanningStep.DECIDED.value
    assert response.headers.get("idempotency-replayed") == ("true" if was_decided else None)
    for cell, name in zip(two.cells, two.names, strict=True):
        with cell.postgres.connect(database=name) as admin:
            assert admin.execute("select v from lists where k = %s", (list_number,)).fetchall() == [([7],)]
    two.wait_until_settled(10)
