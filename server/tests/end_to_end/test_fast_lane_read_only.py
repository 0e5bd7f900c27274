"""Read-only keys and requests in the fast lane and on the ordinary path: the same answers, and nothing is written."""

from typing import Any

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.fast_lane import assert_same, kept_by, sql_wires_of, wires_of
from server.tests.end_to_end.transactions import with_params
from server.tests.end_to_end.wires import Wire, counted, kept_by_lane
from server.tests.load import Node, running_node
from server.tests.service import Service

pytestmark = pytest.mark.compiled

TRANSACTION = "/v1/transaction"


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = "lane-read-only"
    service.customers.add_database(name, "dev")
    service.query("create table item (id serial primary key, name text)", database=name)
    service.query("insert into item (name) values ('kept')", database=name)
    return name


@pytest.fixture(params=["key", "option"])
def reading(request: pytest.FixtureRequest, service: Service) -> tuple[str, dict[str, Any]]:
    """The key, and the fields of every request."""
    return (service.new_key("read"), {}) if request.param == "key" else (service.api_key, {"read_only": True})


STATEMENTS: list[dict[str, Any]] = [
    with_params("select name from item where id = $1", 1),
    with_params("select g from generate_series(1, $1::int) g", 20),
    with_params("select g from generate_series(1, $1::int) g", 40),
    with_params("select g from generate_series(1, $1::int) g", 40, max_rows=3),
    with_params("select repeat('x', $1::int) as x", 100_000),
    with_params("insert into item (name) values ($1)", "written"),
    with_params("update item set name = $1", "written"),
    with_params("select nextval($1)", "item_id_seq"),
    with_params("select 1 / $1::int as q", 0),
    with_params("select pg_sleep($1::float8 / 1000)::text as slept", 40),
    with_params("select set_config('transaction_read_only', $1, false)", "off"),
    {"sql": "select 1 as one"},
    # Without parameters, so the lane need not have prepared it.
    {"sql": "insert into item (name) values ('written')"},
    {"sql": "create table other (x int)"},
    {"sql": "select lastval()"},
]


def test_queries_that_read_are_the_same(
    nodes: dict[str, Node], service: Service, database: str, reading: tuple[str, dict[str, Any]]
) -> None:
    key, fields = reading
    with wires_of(nodes, key, f"X-Database: {database}\r\n") as wires:
        assert_same(wires, [{**statement, **fields} for statement in STATEMENTS])
    assert service.query("select name from item", database=database)["rows"] == [{"name": "kept"}]


def test_transactions_that_read_are_the_same(
    nodes: dict[str, Node], service: Service, database: str, reading: tuple[str, dict[str, Any]]
) -> None:
    key, fields = reading
    first = with_params("select count(*) as n from item where id > $1", 0)
    with wires_of(nodes, key, f"X-Database: {database}\r\n", TRANSACTION) as wires:
        for statement in STATEMENTS:
            options = {name: value for name, value in statement.items() if name in ("max_rows", "timeout_ms")}
            second = {name: value for name, value in statement.items() if name not in options}
            assert_same(wires, [{"statements": [first, second, first], **options, **fields}])
    assert service.query("select name from item", database=database)["rows"] == [{"name": "kept"}]


def test_statements_of_the_neon_driver_that_read_are_the_same(
    nodes: dict[str, Node], service: Service, database: str
) -> None:
    """On its route, only a key makes them read-only."""
    key, before = service.new_key("read"), kept_by(nodes["on"])
    bodies: list[dict[str, Any] | bytes] = [
        {"query": each["sql"], "params": each.get("params", [])} for each in STATEMENTS if "max_rows" not in each
    ]
    with sql_wires_of(nodes, key, database) as wires:
        assert_same(wires, bodies)
        assert_same(wires, [{"query": "select name from item where id = $1", "params": ["1"]}] * 10)
    assert kept_by(nodes["on"]) - before >= 25
    assert service.query("select name from item", database=database)["rows"] == [{"name": "kept"}]


def test_deadlines_are_the_same(
    nodes: dict[str, Node], service: Service, database: str, reading: tuple[str, dict[str, Any]]
) -> None:
    key, fields = reading
    late = with_params("select pg_sleep($1::float8 / 1000)::text as slept", 20_000)
    with wires_of(nodes, key, f"X-Database: {database}\r\n") as wires:
        assert_same(wires, [{**late, **fields, "timeout_ms": 250}], tries=10)
        for wire in wires.values():
            wire.path = TRANSACTION
        assert_same(wires, [{"statements": [late], **fields, "timeout_ms": 250}], tries=10)


def test_a_plan_that_is_stale_is_made_again(
    nodes: dict[str, Node], service: Service, database: str, reading: tuple[str, dict[str, Any]]
) -> None:
    key, fields = reading
    service.query("create table if not exists changing (id int)", database=database)
    wanted = {**with_params("select * from changing where id > $1", 0), **fields}
    with wires_of(nodes, key, f"X-Database: {database}\r\n") as wires:
        for column in ("a", "b"):
            assert_same(wires, [wanted])
            service.query(f"alter table changing add column {column} int", database=database)
        assert_same(wires, [wanted])
    service.query("drop table changing", database=database)


def test_the_lane_takes_what_reads(service: Service, database: str, reading: tuple[str, dict[str, Any]]) -> None:
    key, fields = reading
    metrics_port = free_port()
    with running_node(service.directory_dsn, fast_lane="on", metrics_port=metrics_port) as node:
        wire = Wire(node.port, key, f"X-Database: {database}\r\n")
        select = with_params("select $1::int as n", 1)
        for _ in range(20):
            wire.path = "/v1/query"
            assert b'"rows":[{"n":1}]' in wire.query({**select, **fields})[1]
            wire.path = TRANSACTION
            assert b'"rows":[{"n":1}]' in wire.query({"statements": [select], **fields})[1]
        wire.close()
        metrics = counted(metrics_port)
    assert kept_by_lane(metrics) >= 30
