"""The fast lane with TLS between the service and the cell, as it is in production.

With TLS, bytes may be in the socket that are no results, and results may be in the library that are not in the socket.
The lane hands over a query that is not complete after one read, and a transaction before it would read part of a
result. So it waits for neither.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.cell import new_customer
from server.tests.end_to_end.fast_lane import MODES
from server.tests.end_to_end.wires import Wire, counted, same, total
from server.tests.load import running_node
from server.tests.postgres import Postgres
from server.tests.tls_cell import running_tls_cell

pytestmark = pytest.mark.compiled

ROUNDS = 3
TRANSACTIONS = 50
# A TLS record has up to 16 KiB, PostgreSQL sends 8 KiB at a time, and libpq reads at least as much.
SIZES = (0, 1, 100, 8_000, 8_150, 8_192, 8_300, 16_300, 16_384, 16_500, 33_000, 100_000, 3_000_000)


@pytest.fixture(scope="module")
def wires(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Wire, int]]]:
    """A connection to a node in each mode, with the port of its metrics."""
    with postgres.swept(), running_tls_cell(tmp_path_factory.mktemp("tls")) as cell, ExitStack() as stack:
        directory = postgres.fresh_directory()
        key = new_customer(directory, cell.conninfo("admin"))
        opened = {}
        for mode in MODES:
            port = free_port()
            node = stack.enter_context(running_node(directory, fast_lane=mode, metrics_port=port))
            wire = Wire(node.port, key)
            stack.callback(wire.close)
            opened[mode] = wire, port
        yield opened


def answers(
    wires: dict[str, tuple[Wire, int]], body: dict[str, Any], path: str = "/v1/query"
) -> dict[str, tuple[bytes, bytes]]:
    seen = {}
    for mode, (wire, _) in wires.items():
        wire.path = path
        seen[mode] = same(wire.query(body))
    return seen


def test_the_engine_is_reached_with_tls(wires: dict[str, tuple[Wire, int]]) -> None:
    wires["on"][0].path = "/v1/query"
    body = {"sql": "select version from pg_stat_ssl where pid = pg_backend_pid()"}
    assert json.loads(wires["on"][0].query(body)[1])["rows"][0]["version"].startswith("TLS")


def test_results_of_every_size_arrive(wires: dict[str, tuple[Wire, int]]) -> None:
    for _ in range(ROUNDS):
        for size in SIZES:
            seen = answers(wires, {"sql": "select repeat('x', $1::int) as x", "params": [size]})
            assert json.loads(seen["on"][1])["rows"] == [{"x": "x" * size}]
            assert len(set(seen.values())) == 1, size


def test_many_rows_and_errors_arrive(wires: dict[str, tuple[Wire, int]]) -> None:
    for rows in (*(0, 1, 31, 32, 33, 500, 20_000) * ROUNDS,):
        seen = answers(
            wires, {"sql": "select g, repeat('x', 100) from generate_series(1, $1::int) g", "params": [rows]}
        )
        assert len(set(seen.values())) == 1, rows
        assert len(set(answers(wires, {"sql": "select 1 / $1::int as q", "params": [0]}).values())) == 1


def test_transactions_with_results_of_every_size_arrive(wires: dict[str, tuple[Wire, int]]) -> None:
    text, number = "select repeat('x', $1::int) as x", {"sql": "select $1::int as n", "params": [1]}
    for _ in range(ROUNDS):
        for size in SIZES[:-1]:
            large = {"sql": text, "params": [size]}
            for statements in ([large], [large, number], [number, large, number, large]):
                seen = answers(wires, {"statements": statements}, "/v1/transaction")
                assert b'"success":true' in seen["off"][1]
                assert len(set(seen.values())) == 1, (size, statements)


@pytest.mark.timing
@pytest.mark.parametrize("size", [1, 100, 1_000, 8_000, 8_192, 16_384, 64_000])
def test_transactions_stay_on_the_lane_unless_they_are_large(wires: dict[str, tuple[Wire, int]], size: int) -> None:
    wire, port = wires["on"]
    wire.path = "/v1/transaction"
    statements = [{"sql": "select repeat('x', $1::int) as x", "params": [size]}] * 16
    for _ in range(2):
        wire.query({"statements": statements})
    before = counted(port)
    for _ in range(TRANSACTIONS):
        results = json.loads(wire.query({"statements": statements})[1])["results"]
        assert [each["rows"] for each in results] == [[{"x": "x" * size}]] * 16
    after = counted(port)
    taken = total(after, "plainsql_lane_requests_total") - total(before, "plainsql_lane_requests_total")
    assert taken > TRANSACTIONS * 0.5
    names = {reason: f'plainsql_lane_handed_over_total{{reason="{reason}"}}' for reason in ("large", "slow")}
    grown = {reason: after[name] - before[name] for reason, name in names.items()}
    handed_over = total(after, "plainsql_lane_handed_over_total") - total(before, "plainsql_lane_handed_over_total")
    assert handed_over == sum(grown.values())
    # What waits for bytes that the socket does not announce waits for 25 ms each time. A busy machine does not.
    assert grown["slow"] < TRANSACTIONS * 0.5
    if size > 8_000:
        assert grown["large"] == taken - grown["slow"]
    else:
        # A record that comes in two pieces looks like the beginning of a large result, which is not usual, either.
        assert grown["large"] < TRANSACTIONS * 0.5


def test_the_lane_is_taken(wires: dict[str, tuple[Wire, int]]) -> None:
    wire, port = wires["on"]
    wire.path = "/v1/query"
    before = total(counted(port), "plainsql_lane_requests_total")
    for number in range(50):
        assert json.loads(wire.query({"sql": "select $1::int as a", "params": [number]})[1])["rows"] == [{"a": number}]
    assert total(counted(port), "plainsql_lane_requests_total") >= before + 48
