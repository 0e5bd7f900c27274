"""The fast lane and the ordinary path give the same answers, whatever is sent and wherever a request is handed over."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.fast_lane import assert_same, logged, wires_of
from server.tests.end_to_end.wires import Wire, counted, kept_by_lane
from server.tests.load import Node, running_node
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.compiled

TYPES = (
    "int", "int8", "text", "numeric", "float8", "boolean", "jsonb", "json", "int[]", "text[]", "bytea", "timestamptz",
    "date", "uuid", "time", "interval", "bpchar", "money", "xml", "inet",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    1, 0, -5, 2147483648, 1.5, -1.25e10, True, False, None, "7", "x", "", "a b", "é", 'q"q', "a\\b", "'", [1, 2],
    {"a": 1}, [], "NaN", 12345678901234567890, "2026-11-16", "[1]", "{1,2}",
)  # fmt: skip


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = "fast-lane"
    service.customers.add_database(name, "dev")
    service.query(
        "create table item (id serial primary key, name text, price numeric, ready boolean default true,"
        " at timestamptz default '2026-01-01')",
        database=name,
    )
    return name


@pytest.fixture
def wires(nodes: dict[str, Node], service: Service, database: str) -> Iterator[dict[str, Wire]]:
    with wires_of(nodes, service.api_key, f"X-Database: {database}\r\n") as opened:
        yield opened


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_and_value_gets_the_same_answer(wires: dict[str, Wire], type_name: str) -> None:
    assert_same(wires, [{"sql": f"select $1::{type_name} as v", "params": [value]} for value in VALUES])


def test_results_of_every_size_are_the_same(wires: dict[str, Wire]) -> None:
    series = "select g, repeat('x', 50) from generate_series(1, $1::int) g"
    assert_same(
        wires,
        [
            *({"sql": series, "params": [rows]} for rows in (0, 1, 31, 32, 33, 64, 65, 500, 5_000)),
            *({"sql": "select repeat('y', $1::int) as y", "params": [size]} for size in (10, 8_192, 70_000, 300_000)),
            *({"sql": series, "params": [50], "max_rows": rows} for rows in (0, 1, 10, 31, 32, 49, 50, 51)),
        ],
    )


def test_statements_that_write_are_the_same(wires: dict[str, Wire]) -> None:
    assert_same(
        wires,
        [
            {"sql": "insert into item (name, price) values ($1, $2) returning name, price", "params": ["a", 1.5]},
            {"sql": "update item set price = price where name = $1", "params": ["none"]},
            {"sql": "delete from item where name = $1", "params": ["none"]},
            {"sql": "select lastval()"},
            {"sql": "select set_config('app.x', $1, false) as x", "params": ["1"]},
            {"sql": "select current_setting('app.x', true) as x"},
            {"sql": "create temporary table gone (x int)"},
            {"sql": "select to_regclass($1)::text as gone", "params": ["pg_temp.gone"]},
        ],
    )


def test_errors_are_the_same(wires: dict[str, Wire]) -> None:
    texts: list[bytes] = [
        b'[01]', b"[1,]", b"[1.]", b"[ 1 ]", b"[+1]", b"[tru]", b'["\x01"]', b'["\x7f"]', b'["\xff"]', b'["[x]"]',
        b'["a","b"]', b'["a\\u0000b"]', b'["a\\nb"]', b"[]", b"[[1]]", b"1",
    ]  # fmt: skip
    assert_same(
        wires,
        [
            {"sql": "select 1 / $1::int as q", "params": [0]},
            {"sql": "select * from nowhere where x = $1", "params": [1]},
            {"sql": "select $1::int as a", "params": [1, 2]},
            {"sql": "select 1 as a", "params": [1]},
            {"sql": "", "params": [1]},
            {"sql": "select 1; select 2"},
            {"sql": "begin"},
            {"sql": "select $1::int as a", "params": [1], "database": "nope"},
            {"sql": "select $1::int as a", "params": [1], "nope": 1},
            {"sql": "copy item to stdout"},
            b"nonsense",
            b"{}",
            *(b'{"sql": "select $1::text as a", "params": %b}' % text for text in texts),
        ],
    )


def test_notices_are_the_same_and_handed_over(wires: dict[str, Wire]) -> None:
    long_name = "n" * 70
    assert_same(
        wires,
        [
            {"sql": f"select 1 as {long_name}"},
            {"sql": "select 1 as quiet"},
            {"sql": "drop table if exists never_there"},
            {"sql": f"select $1::int as {long_name}", "params": [1]},
            {"sql": "create temporary table if not exists pg_temp.gone as select 1 as x"},
        ],
    )
    # This one is parsed each time, in the lane as elsewhere.
    assert b"will be truncated" in wires["on"].query({"sql": f"select 1 as {long_name}"})[1]


def test_bytes_are_the_same(wires: dict[str, Wire]) -> None:
    texts = ["AAEC", "AA==", "AA", "", "\\x00", "hello", "hello world"]
    assert_same(wires, [{"sql": "select $1::bytea as b", "params": [text]} for text in texts])
    assert_same(wires, [{"sql": "create temporary table stored as select g from generate_series(1, 3) g"}])


def test_deadlines_are_the_same(wires: dict[str, Wire]) -> None:
    assert_same(
        wires,
        [
            {"sql": "select $1::int as a", "params": [1], "timeout_ms": 99},
            {"sql": "select pg_sleep($1::float8 / 1000)", "params": [20_000], "timeout_ms": 250},
        ],
        tries=10,
    )


def test_options_are_the_same(wires: dict[str, Wire], database: str) -> None:
    statement = {"sql": "select $1::numeric as a, 2 as a", "params": [1.50]}
    assert_same(
        wires,
        [
            {**statement, "row_format": "array"},
            {**statement, "big_numbers": "string"},
            {**statement, "read_only": True},
            {**statement, "database": database},
            {**statement, "timeout_ms": 5_000},
            {"sql": "select pg_sleep($1::float8 / 1000)", "params": [60]},
            {"sql": "/*+ STREAM */ select 1", "unknown": 1},
            b'{"params": [5], "sql": "select $1::int as a"}',
            b'{"sql": "select \'[\' || $1::text as a", "params": ["k"]}',
        ],
    )


def test_ids_and_origins_are_the_same(nodes: dict[str, Node], service: Service, database: str) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for head in ("Origin: https://x\r\n", f"traceparent: {trace}\r\n", "X-Request-Id: req_abcdefgh1\r\n"):
        lines = f"X-Database: {database}\r\n{head}"
        wires = {mode: Wire(node.port, service.api_key, lines) for mode, node in nodes.items()}
        assert_same(wires, [{"sql": "select $1::int as a", "params": [1]}, {"sql": "select 1/0"}])
        if "Request-Id" in head:
            assert b"req_abcdefgh1" in wires["on"].query({"sql": "select $1::int as a", "params": [2]})[1]
        for wire in wires.values():
            wire.close()


def test_a_changed_table_is_seen_by_prepared_statements(
    wires: dict[str, Wire], service: Service, database: str
) -> None:
    service.query("create table changing (id int primary key)", database=database)
    service.query("insert into changing values (1)", database=database)
    body: dict[str, Any] = {"sql": "select * from changing where id = $1", "params": [1]}
    assert_same(wires, [body])
    for sql in ("add a int default 7", "alter a type text", "rename a to b", "drop b"):
        service.query(f"alter table changing {sql}", database=database)
        assert_same(wires, [body])
    service.query("drop table changing", database=database)
    assert_same(wires, [body])


def test_pipelined_requests_are_answered_in_order(wires: dict[str, Wire]) -> None:
    wanted = list(range(40))
    for wire in wires.values():
        many = b"".join(wire.bytes_of({"sql": "select $1::int as a", "params": [number]}) for number in wanted)
        for step in (len(many), 1_000, 333, 7):
            for start in range(0, len(many), step):
                wire.send(many[start : start + step])
            assert [json.loads(wire.answer()[1])["rows"][0]["a"] for _ in wanted] == wanted


def test_the_lane_is_taken_and_counted(service: Service, database: str) -> None:
    metrics_port = free_port()
    with running_node(service.directory_dsn, fast_lane="on", metrics_port=metrics_port) as node:
        wire = Wire(node.port, service.api_key, f"X-Database: {database}\r\n")
        for number in range(100):
            _, body = wire.query({"sql": "select $1::int as a", "params": [number]})
            assert json.loads(body)["rows"] == [{"a": number}]
        wire.close()
        wait_for(
            lambda: counted(metrics_port)['plainsql_requests_total{route="/v1/query",status="200"}'] == 100,
            10,
            node.failures,
        )
        metrics = counted(metrics_port)
        wait_for(lambda: len(logged(node)) == 100, 30, node.failures)
        lines = logged(node)
    assert kept_by_lane(metrics) == metrics["plainsql_lane_requests_total"] >= 97
    assert metrics['plainsql_lane_passed_total{reason="head"}'] >= 1
    assert metrics["plainsql_rows_total"] == 100
    # The lane writes the log lines that the ordinary path writes.
    assert len({tuple(line) for line in lines}) == 1
    assert {line["command"] for line in lines} == {"SELECT"}
