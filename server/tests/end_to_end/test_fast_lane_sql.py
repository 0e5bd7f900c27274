"""POST /sql on the fast lane and on the ordinary path: the same answers to what Neon's driver and others may send."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.fast_lane import MODES, ROUNDS, assert_same, kept_by, logged, sql_wires_of, wires_of
from server.tests.end_to_end.test_fast_lane import TYPES, VALUES
from server.tests.end_to_end.wires import SqlWire, Wire, counted, kept_by_lane, same
from server.tests.load import Node, running_node
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.compiled

# The driver always sends the first one. The others are what its own server understands.
DRIVER = "Neon-Raw-Text-Output: true\r\nNeon-Array-Mode: true\r\n"
LAYOUTS = (DRIVER, "", "Neon-Raw-Text-Output: true\r\n", "Neon-Array-Mode: true\r\n")
ODD_LAYOUTS = (
    "Neon-Raw-Text-Output: True\r\n", "Neon-Raw-Text-Output: false\r\nNeon-Raw-Text-Output: true\r\n",
    "Neon-Raw-Text-Output: true\r\nNeon-Raw-Text-Output: false\r\n", "neon-array-mode:true\r\n",
    "Neon-Array-Mode: true, true\r\n", "Neon-Array-Mode: \r\n", "Neon-Batch-Isolation-Level: nonsense\r\n",
    "Neon-Batch-Read-Only: true\r\n", "Idempotency-Key: fast-lane-sql\r\n", "Origin: https://x\r\n",
    "Accept: text/event-stream\r\n", "Content-Encoding: gzip\r\n", "X-Request-Id: req_abcdefgh1\r\n",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n", "X-Database: nope\r\n",
)  # fmt: skip


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = "fast-lane-sql"
    service.customers.add_database(name, "dev")
    service.query(
        "create table item (id serial primary key, name varchar(40), price numeric(10, 2), ready boolean default true,"
        " at timestamptz default '2026-01-01', span interval default '1 month 2 days 03:00', tags text[])",
        database=name,
    )
    service.query(
        "insert into item (name, price, tags)"
        " select 'item ' || g, g * 1.5, array['a', 'b c'] from generate_series(1, 99) g",
        database=name,
    )
    return name


@pytest.fixture
def wires(nodes: dict[str, Node], service: Service, database: str) -> Iterator[dict[str, Wire]]:
    with sql_wires_of(nodes, service.api_key, database, DRIVER) as opened:
        yield opened


def in_all_layouts(wires: dict[str, Wire], bodies: list[dict[str, Any] | bytes]) -> None:
    """Each request in each layout, in turns on the same connections."""
    for _ in range(ROUNDS):
        for body, layout in product(bodies, LAYOUTS):
            for wire in wires.values():
                wire.head = layout
            answers = {mode: same(wire.query(body)) for mode, wire in wires.items()}
            assert [mode for mode in MODES[1:] if answers[mode] != answers["off"]] == [], (body, layout, answers)


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_and_value_gets_the_same_answer(wires: dict[str, Wire], type_name: str) -> None:
    bodies: list[dict[str, Any] | bytes] = [
        {"query": f"select $1::{type_name} as v", "params": [value]} for value in VALUES
    ]
    assert_same(wires, bodies)
    for wire in wires.values():
        wire.head = ""
    assert_same(wires, bodies)


def test_every_form_of_an_answer_is_the_same(wires: dict[str, Wire]) -> None:
    columns = (
        "true as b, 1::int2 as s, 1.5::float4 as f, 'nan'::float8 as nan, 9007199254740993 as big, 1.50::numeric as n,"
        """ '{"a": 1.0}'::json as j, '[1, null]'::jsonb as jb, '{{1,NULL},{3,4}}'::int[] as ints,"""
        " array[true, null] as bs,"
        " array['a,b', null] as texts, array['1 day'::interval, null] as spans, '\\x00ff'::bytea as bytes,"
        " '1 mon -1 day'::interval as span, '2026-11-14 22:15:31.5+00'::timestamptz as at, '[1,3)'::int4range as range,"
        " row(1, 'a b') as pair, null::int as nothing"
    )
    in_all_layouts(
        wires,
        [
            {"query": f"select {columns}"},
            {"query": f"select $1::int as p, {columns}", "params": [1]},
            {"query": "select id, name, price, span, tags from item where id = $1", "params": ["7"]},
            {"query": "select * from item order by id limit 3"},
            {"query": "select 1 as a, 2 as a, 3 as a_1"},
            {"query": "select"},
            {"query": "select from item where id < $1", "params": [3]},
            {"query": "insert into item (name) values ($1) returning name", "params": ["new"]},
            {"query": "delete from item where name = $1", "params": ["none"]},
            {"query": "update item set price = price where id < 3"},
            {"query": "create temporary table made as select generate_series(1, 3) n"},
            {"query": "select 1 / $1::int as q", "params": [0]},
            {"query": "select id as v from item where id = $1", "params": ["1"], "arrayMode": True},
            {"query": "select id as v from item where id = $1", "params": ["1"], "arrayMode": False},
            {"query": "select id as v from item where id = $1", "params": ["1"], "arrayMode": None},
            {"arrayMode": True, "query": "select 1 as v"},
            {"query": "select 1 as v", "arrayMode": False},
            {"queries": [{"query": "select $1::int as v", "params": ["1"]}]},
        ],
    )


def test_results_of_every_size_are_the_same(wires: dict[str, Wire]) -> None:
    series = "select g, repeat('x', 50) from generate_series(1, $1::int) g"
    assert_same(
        wires,
        [
            *({"query": series, "params": [rows]} for rows in (0, 1, 31, 32, 33, 64, 65, 500, 5_000)),
            *({"query": "select repeat('y', $1::int) as y", "params": [size]} for size in (10, 8_192, 70_000, 300_000)),
            {"query": "select pg_sleep(0.06)::text as slept"},
        ],
    )


def test_statements_that_write_or_leave_something_behind_are_the_same(wires: dict[str, Wire]) -> None:
    assert_same(
        wires,
        [
            {"query": "insert into item (name, price) values ($1, $2) returning name, price", "params": ["a", "1.5"]},
            {"query": "update item set price = price where name = $1", "params": ["none"]},
            {"query": "delete from item where name = $1", "params": ["none"]},
            {"query": "select lastval()"},
            {"query": "select set_config('app.x', $1, false) as x", "params": ["1"]},
            {"query": "select current_setting('app.x', true) as x"},
            {"query": "set app.x = '1'"},
            {"query": "create temporary table gone (x int)"},
            {"query": "select to_regclass($1)::text as gone", "params": ["pg_temp.gone"]},
            {"query": f"select 1 as {'n' * 70}"},
            {"query": "drop table if exists never_there"},
        ],
    )


def test_bodies_of_every_kind_are_the_same(wires: dict[str, Wire]) -> None:
    texts: list[bytes] = [
        b"[01]", b"[1,]", b"[1.]", b"[ 1 ]", b"[+1]", b"[tru]", b'["\x01"]', b'["\x7f"]', b'["\xff"]', b'["[x]"]',
        b'["a","b"]', b'["a\\u0000b"]', b'["a\\nb"]', b"[]", b"[[1]]", b"1", b'[{"a":[1]}]', b'[{"a":"]"}]', b"null",
    ]  # fmt: skip
    statement = b'{"query":"select $1::text as a","params":["1"]%b}'
    assert_same(
        wires,
        [
            {"query": "select * from nowhere where x = $1", "params": [1]},
            {"query": "select $1::int as a", "params": [1, 2]},
            {"query": "", "params": [1]},
            {"query": "select 1; select 2"},
            {"query": "begin"},
            {"query": "copy item to stdout"},
            {"query": "/*+ STREAM */ select 1"},
            {"sql": "select 1"},
            {"query": "select 1", "queries": []},
            {"query": "select 1", "queries": None},
            {"query": None, "params": ["1"]},
            {"queries": [{"query": "select 1"}, {"query": "select nothing"}]},
            *(b'{"query": "select $1::text as a", "params": %b}' % text for text in texts),
            *(statement % more for more in (
                b"", b',"unknown":[2]', b',"params":["2"]', b',"query":"select $1::int as b"', b',"arrayMode":1',
                b',"arrayMode":true,"arrayMode":false', b',"queries":[{"query":"select 2"}]', b',"database":"nope"',
                b',"Params":["2"]', b',"array_mode":true',
            )),
            b'{"params":["7"],"query":"select tags[$1] from item where id = 7"}',
            b'{"params":["5"],"query":"select array[1,2] as x, $1::int"}',
            b"nonsense", b"{}", b"[]", b"", b'"select 1"',
        ],
    )  # fmt: skip


@pytest.mark.parametrize("layout", ODD_LAYOUTS)
def test_odd_headers_are_the_same(wires: dict[str, Wire], layout: str) -> None:
    for wire in wires.values():
        wire.head = layout
    statement = {"query": "select $1::int as a, 1.50 as b", "params": ["1"]}
    # With a key, this is the first answer, and all others repeat it.
    wires["off"].query(statement)
    assert_same(
        wires, [statement, {"query": "select 1 / $1::int", "params": ["0"]}, {"queries": [{"query": "select 1 as a"}]}]
    )
    if "Request-Id" in layout:
        assert b"req_abcdefgh1" in wires["on"].query({"query": "select $1::int as a", "params": [2]})[0]


def test_a_credential_in_either_header_is_the_same(nodes: dict[str, Node], service: Service, database: str) -> None:
    body = {"query": "select current_database() = $1 as here", "params": ["x"]}
    lines = (
        f"X-Database: {database}\r\n", "",
        f"Neon-Connection-String: postgresql://app:wrong@host/{database}\r\n",
        f"Neon-Connection-String: postgresql://app:{service.api_key}@host/{database}\r\n",
        f"Neon-Connection-String: postgresql://app:{service.api_key}@host/nope\r\nX-Database: {database}\r\n",
        "Neon-Connection-String: mysql://x\r\n", f"Authorization: Basic x\r\nX-Database: {database}\r\n",
    )  # fmt: skip
    for head in lines:
        with wires_of(nodes, service.api_key, head, "/sql") as wires:
            assert_same(wires, [body, {"query": "select 1 as a"}])


def test_odd_connection_strings_are_the_same(nodes: dict[str, Node], service: Service, database: str) -> None:
    key = service.api_key
    encoded = "".join(f"%{ord(each):02X}" for each in key)
    strings = (
        f"{key}@host/{database}", f"{key}@host/{database}?sslmode=require", f"{key}@host/", f"{key}@host",
        f"{encoded}@host/{database}", f"{key}@host/%66{database[1:]}", f"{key}@host/{database}%00", f"{key}@host/nope",
        f"{key}@host/{database.upper()}", f"{key}@@host/{database}", f"x:{key}@host/{database}", f"{key}%20@host/x",
        f"{key}/@host/{database}", f"{key}?@host/{database}", f"{key}#@host/{database}", f"{key[:-1]}@host/{database}",
        f"{key[:-1]}%@host/{database}", f"{key}@host/{database}/x", f"{key}@host//{database}", f"@host/{database}",
        f"{key}@{'h' * 3_000}/{database}", f"{key}@host/{'d' * 3_000}", f"{'k' * 3_000}@host/{database}",
        f"{key}@h\u00f6st/{database}", f"{key}@host/d\u00e4", f"\u00ff{key}@host/{database}",
    )  # fmt: skip
    for string in strings:
        head = f"{DRIVER}Neon-Connection-String: postgresql://app:{string}\r\n"
        with sql_wires_of(nodes, key, database, head) as wires:
            # The later header is the one that counts, so these have two.
            assert_same(wires, [{"query": "select $1::int as a", "params": ["1"]}])
        head = f"{DRIVER}X-Padding: x\r\n"
        with sql_wires_of(nodes, string.partition("@")[0], string.partition("@")[2], head) as wires:
            assert_same(wires, [{"query": "select $1::int as a", "params": ["1"]}])


def test_columns_that_come_from_another_table_are_seen(
    wires: dict[str, Wire], nodes: dict[str, Node], service: Service, database: str
) -> None:
    """The statement is prepared, and PostgreSQL runs it on, because its columns have the same names and types."""

    def made(columns: str) -> int:
        service.query("drop table if exists replaced", database=database)
        service.query(f"create table replaced ({columns})", database=database)
        service.query("insert into replaced (id, name) values (1, 'a')", database=database)
        return int(service.value("select 'replaced'::regclass::oid::int8", database=database))

    body: dict[str, Any] = {"query": "select id, name from replaced where id = $1", "params": ["1"]}
    for columns in ("id int, name text", "id int, name text", "name text, id int", "x int, id int, name text"):
        table, before = made(columns), kept_by(nodes["on"])
        in_all_layouts(wires, [body, {"query": "select id, name from replaced"}])
        for wire in wires.values():
            fields = json.loads(wire.query(body)[1])["fields"]
            assert [each["tableID"] for each in fields] == [table, table]
            order = [each.split()[0] for each in columns.split(", ")]
            assert [each["columnID"] for each in fields] == [order.index("id") + 1, order.index("name") + 1]
        # All but those that had to learn, or to prepare the statement again.
        assert kept_by(nodes["on"]) - before >= len(LAYOUTS) * 2 * (ROUNDS - 1)
    for sql in ("alter name type varchar(9)", "alter name type varchar(8)", "rename name to n", "drop n"):
        service.query(f"alter table replaced {sql}", database=database)
        in_all_layouts(wires, [body])


def test_statements_are_shared_with_our_own_routes(wires: dict[str, Wire], service: Service, database: str) -> None:
    """A connection to the engine has prepared them once, and writes their results in all forms."""
    ours = {mode: Wire(wire.port, service.api_key, f"X-Database: {database}\r\n") for mode, wire in wires.items()}
    for _ in range(ROUNDS):
        for value in ("\\x0001", "AAEC", '{"a": 1}'):
            for type_name in ("bytea", "jsonb", "text", "int"):
                sql = f"select $1::{type_name} as v, id from item where id = 1"
                answers = {mode: same(wire.query({"query": sql, "params": [value]})) for mode, wire in wires.items()}
                assert len(set(answers.values())) == 1
                answers = {mode: same(wire.query({"sql": sql, "params": [value]})) for mode, wire in ours.items()}
                assert len(set(answers.values())) == 1
    for wire in ours.values():
        wire.close()


def test_pipelined_requests_are_answered_in_order(wires: dict[str, Wire]) -> None:
    wanted = [[str(number)] for number in range(40)]
    for wire in wires.values():
        many = b"".join(wire.bytes_of({"query": "select $1::int as a", "params": row}) for row in wanted)
        for step in (len(many), 1_000, 333):
            for start in range(0, len(many), step):
                wire.send(many[start : start + step])
            assert [json.loads(wire.answer()[1])["rows"][0] for _ in wanted] == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("array_mode", [None, False, True])
def test_the_lane_is_taken_in_each_form(
    wires: dict[str, Wire], nodes: dict[str, Node], layout: str, array_mode: bool | None
) -> None:
    """Also by strings for types whose strings are converted on our own routes."""
    body: dict[str, Any] = {"query": "select $1::int as a, $2::jsonb as b, $3::bytea as c", "params": ["7", "1", "x"]}
    if array_mode is not None:
        body["arrayMode"] = array_mode
    as_arrays = "Array" in layout if array_mode is None else array_mode
    values = ["7", "1", "\\x78"] if "Raw" in layout else [7, 1, "\\x78"]
    rows = [values] if as_arrays else [dict(zip("abc", values, strict=True))]
    wire, before = wires["on"], kept_by(nodes["on"])
    wire.head = layout
    for _ in range(20):
        answered = json.loads(wire.query(body)[1])
        assert (answered["rows"], answered["rowAsArray"]) == (rows, as_arrays)
    assert kept_by(nodes["on"]) - before >= 17


def all_reported(node: Node, metrics_port: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The log lines and the metrics of a node that has answered 100 requests, once they are there."""
    name = 'plainsql_requests_total{route="/sql",status="200"}'
    wait_for(lambda: counted(metrics_port).get(name) == 100, 10, node.failures)
    wait_for(lambda: len(logged(node, "/sql")) == 100, 30, node.failures)
    return logged(node, "/sql"), counted(metrics_port)


def test_the_lane_is_taken_counted_and_logged(service: Service, database: str) -> None:
    lines = {}
    for mode in ("off", "on"):
        metrics_port = free_port()
        with running_node(service.directory_dsn, fast_lane=mode, metrics_port=metrics_port) as node:
            wire = SqlWire(node.port, service.api_key, DRIVER, database=database)
            for number in range(100):
                _, body = wire.query({"query": "select $1::int as a", "params": [str(number)]})
                assert json.loads(body)["rows"] == [[str(number)]]
            wire.close()
            lines[mode], metrics = all_reported(node, metrics_port)
        assert metrics["plainsql_rows_total"] == 100
        assert kept_by_lane(metrics) >= 97 if mode == "on" else kept_by_lane(metrics) == 0
    varying = {"at", "request_id", "total_us", "queue_us", "exec_us"}
    seen = [{name: line[name] for name in line if name not in varying} for mode in lines for line in lines[mode]]
    assert all(each == seen[0] for each in seen)
    assert len({tuple(line) for line in lines["off"] + lines["on"]}) == 1
