"""A database is moved to and fro while clients write to it: nothing is lost, nothing is doubled, and nobody waits long.

`make soak PART=moves` is the full size: 50 moves of a database of 100 MB.
"""

import asyncio
import re
import time

import pytest

from plainsql_server.dev.ports import free_port
from plainsql_server.extension_modules import COMPILED
from server.tests.end_to_end.wires import counted, total
from server.tests.fleet.stage import Fleet
from server.tests.fleet.writers import TABLE, rows_of, writing
from server.tests.load import percentile, running_node, size

pytestmark = pytest.mark.chaos

MOVES = size("PLAINSQL_TEST_MOVES", 2)
SIZE_MB = size("PLAINSQL_TEST_MOVE_MB", 2)
CLIENTS = size("PLAINSQL_TEST_MOVE_CLIENTS", 2)
# A row and its places in two indexes take about 230 bytes.
_ROWS_PER_MB = 4_300


def fill(fleet: Fleet) -> int:
    """Fills the database; its size in bytes."""
    with fleet.now.owner() as owner:
        owner.execute(TABLE)
        owner.execute("create table filler (id int primary key, t text, n int)")
        owner.execute(
            "insert into filler select g, md5(g::text) || md5((-g)::text), 0 from generate_series(1, %s) g",
            (SIZE_MB * _ROWS_PER_MB,),
        )
        owner.execute("create index on filler (t)")
        ((size_bytes,),) = owner.execute("select pg_database_size(current_database())").fetchall()
    return int(size_bytes)


@pytest.mark.timeout(240 + 20 * MOVES)
async def test_moves_under_load_neither_lose_nor_duplicate_rows(fleet: Fleet) -> None:
    size_bytes = await asyncio.to_thread(fill, fleet)
    stops_s, took_s = [], []
    metrics_port = free_port()
    with running_node(fleet.dsn, metrics_port=metrics_port) as node:
        async with writing(node.port, fleet.key, CLIENTS, CLIENTS // 2) as written:
            for _ in range(MOVES):
                to, began_s = fleet.other(), time.monotonic()
                output = await asyncio.to_thread(fleet.move)
                took_s.append(time.monotonic() - began_s)
                assert fleet.cell() == to
                stops_s.append(float(re.findall(r"Requests waited for ([0-9.]+) s", output)[0]))
        with fleet.now.owner() as owner:
            written.check(rows_of(owner))
        on_lane = total(await asyncio.to_thread(counted, metrics_port), "plainsql_lane_requests_total")
    assert len(written.acknowledged) > 10 * MOVES
    if COMPILED:
        # Moves reach the fast lane as they reach the rest.
        assert on_lane > 5 * MOVES
    print(
        f"\nmoves: {MOVES} of {size_bytes / 1e6:.0f} MB, {len(written.acknowledged)} acknowledged writes, 0 lost, 0"
        f" doubled; the stop: median {percentile(stops_s, 50):.2f} s, longest {max(stops_s):.2f} s; the longest time"
        f" without an acknowledged write {written.longest_gap_s:.2f} s, the slowest write"
        f" {written.longest_answer_s:.2f} s; a move takes {percentile(took_s, 50):.1f} s;"
        f" refused {len(written.refused)}, unknown {len(written.unknown)}: {dict(written.words)}"
    )
