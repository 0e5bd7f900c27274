"""Transactions in the fast lane and on the ordinary path: the same answers, the same effects, the same counts."""

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.fast_lane import MODES, ROUNDS, assert_same, logged, wires_of
from server.tests.end_to_end.test_usage import used
from server.tests.end_to_end.transactions import Sent, with_params
from server.tests.end_to_end.wires import Wire, counted, same, total
from server.tests.load import Node, running_node
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.compiled

PATH = "/v1/transaction"
INSERT = "insert into item (name, price) values ($1, $2) returning name, price"
UPDATE = "update item set price = price + $1 where name = $2"
SERIES = "select g, repeat('x', 50) as x from generate_series(1, $1::int) g"
SLEEP = "select pg_sleep($1::float8 / 1000)::text as slept"
SLEEPS = "wait_event = 'PgSleep'"
ADD = "update balance set amount = amount + $1 where id = $2"


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = "lane-transactions"
    service.customers.add_database(name, "dev")
    for sql in (
        "create table item (id serial primary key, name text, price numeric, kept boolean default true)",
        "create table balance (id int primary key, amount int not null)",
        "insert into balance select g, 0 from generate_series(1, 20) g",
        "create table owed (balance_id int references balance deferrable initially deferred)",
    ):
        service.query(sql, database=name)
    return name


@pytest.fixture
def wires(nodes: dict[str, Node], service: Service, database: str) -> Iterator[dict[str, Wire]]:
    with wires_of(nodes, service.api_key, f"X-Database: {database}\r\n", PATH) as opened:
        yield opened


def body(*statements: Sent, **fields: Any) -> dict[str, Any]:
    return {"statements": list(statements), **fields}


def test_ordinary_transactions_are_the_same(wires: dict[str, Wire]) -> None:
    insert, update = with_params(INSERT, "a", 1.5), with_params(UPDATE, 1, "none")
    select = with_params("select $1::int as n, $2::text as t", 7, "é")
    assert_same(
        wires,
        [
            body(insert),
            body(insert, update, select),
            body(select, "select 1 as one", "select 2 as two, null as none"),
            body("select 1 as one"),
            body(with_params("delete from item where name = $1", "none"), insert, insert, insert),
            body(*[with_params("select $1::int as n", number) for number in range(16)]),
            body(*[with_params("select $1::int as n", number) for number in range(17)]),
            body(with_params("select $1::int as n", 1), "create temporary table gone (x int)"),
            body("create temporary table gone (x int)", with_params("select $1::int as n", 1)),
            body("set local work_mem = '1MB'", select),
            body(select, with_params("select set_config('app.x', $1, false) as x", "1")),
            body(select, "select current_setting('app.x', true) as x"),
        ],
    )


def test_parameters_of_every_kind_are_the_same(wires: dict[str, Wire]) -> None:
    values: tuple[Any, ...] = (
        1, -5, 1.5, True, None, "7", "", "é", 'q"q', "a\\b", "]", "[", '],"params":[', [1, 2], {"a": 1}, "{1,2}",
        12345678901234567890,
    )  # fmt: skip
    types = ("int", "text", "numeric", "jsonb", "json", "int[]", "boolean")
    for type_name in types:
        statement = f"select $1::{type_name} as v"
        assert_same(
            wires, [body(with_params("select $1::int as n", 1), with_params(statement, value)) for value in values]
        )


def test_results_of_every_size_are_the_same(wires: dict[str, Wire]) -> None:
    small, text = with_params(SERIES, 2), "select repeat('y', $1::int) as y"
    sizes = (0, 1, 31, 32, 33, 64, 65, 500, 5_000)
    assert_same(
        wires,
        [
            *(body(with_params(SERIES, rows), small) for rows in sizes),
            *(body(small, with_params(SERIES, rows), small) for rows in sizes),
            *(body(small, with_params(SERIES, 20), max_rows=rows) for rows in (0, 1, 2, 19, 20, 21)),
            *(body(small, with_params(text, size), small) for size in (8_192, 70_000, 300_000, 3_000_000)),
            body(*[with_params(text, 40_000) for _ in range(10)]),
        ],
    )


def test_options_are_the_same(wires: dict[str, Wire], database: str) -> None:
    statements = with_params("select $1::numeric as a, 2 as a", 1.50), with_params("select $1::int8 as b", 5)
    assert_same(
        wires,
        [
            body(*statements, row_format="array"),
            body(*statements, big_numbers="string"),
            body(*statements, row_format="array", big_numbers="string"),
            body(*statements, read_only=True),
            body(*statements, database=database),
            body(*[{**each, "database": database} for each in statements]),
            body(statements[0], {**statements[1], "database": database}),
            body(statements[0], {**statements[1], "database": "nope"}),
            body(*statements, max_retries=0),
            body(*statements, max_retries=101),
            body(*statements, timeout_ms=5_000),
            body(statements[0], {**statements[1], "expect": {"row_count": 1}}),
            body(statements[0], {**statements[1], "expect": {"row_count": 2}}),
            body(statements[0], with_params("select $1::int as c", {"$ref": "0.row_count"})),
            body(statements[0], {**statements[1], "rows": False}),
            body(statements[0], {**statements[1], "expect": {"digest": "0" * 32}}),
            body(*statements, nows=["2026-11-17T09:46:06.123456Z"]),
            body(*statements, nope=1),
        ],
    )


@pytest.mark.parametrize("mode", MODES)
def test_rehearsals_are_passed_on(wires: dict[str, Wire], mode: str) -> None:
    """The same statements without these options come first, so that the lane knows them."""
    insert, count = with_params(INSERT, f"rehearsed {mode}", 1), "select count(*) as n from item where name = $1"

    def answer(*statements: Sent, **fields: Any) -> Any:
        return json.loads(wires[mode].query(body(*statements, **fields))[1])

    for rounds in range(1, ROUNDS + 1):
        assert answer(insert)["success"]
        rehearsed = answer(insert, dry_run=True)
        assert (rehearsed["affected_rows"], rehearsed["transaction"]["dry_run"]) == (1, True)
        assert len(answer({**insert, "digest": True}, dry_run=True)["results"][0]["digest"]) == 32
        assert answer({**insert, "freeze": True}, dry_run=True)["results"][0]["frozen"]["mergeable"]
        assert answer(with_params(count, f"rehearsed {mode}"))["results"][0]["rows"] == [{"n": rounds}]
        owed = with_params("insert into owed values ($1)", 99)
        assert answer(owed)["error"]["code"] == "foreign_key_violation"
        assert answer(owed, dry_run=True)["affected_rows"] == 1
        assert answer(owed, dry_run=True, check_deferred=True)["error"]["code"] == "foreign_key_violation"
        digested = answer({**with_params(count, f"rehearsed {mode}"), "digest": True})["results"][0]["digest"]
        expected = {**with_params(count, f"rehearsed {mode}"), "expect": {"digest": digested}}
        assert answer(expected)["success"]
        assert answer({**expected, "expect": {"digest": "0" * 32}})["error"]["code"] == "serialization_failure"


def test_bodies_of_every_form_are_the_same(wires: dict[str, Wire]) -> None:
    texts = (
        b'{"statements": [{"params": [5], "sql": "select $1::int as a"}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":[5]},{"params":[6],"sql":"select $1::int as b"}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":[5],"params":[6]}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":[5]}],"statements":[{"sql":"select 2 as b"}]}',
        b'{"statements":[{"sql":"select \'\\"params\\":[1]\' as a"},{"sql":"select $1::int as b","params":[1]}]}',
        b'{"statements":[{"sql":"select $1::text as a","params":["\\"params\\":[1]"]}]}',
        b'{"statements":[{"sql":"select $1::int as a","params" : [ 1 ] }]}',
        b'{"statements":[{"sql":"select $1::int as a","params"\n:\t[1]}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":[\n1]}]}',
        b'{"statements":[{"sql":"select 1 as a","params":[]}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":[1,]}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":[01]}]}',
        b'{"statements":[{"sql":"select $1::text as a","params":["\xff"]}]}',
        b'{"statements":[{"sql":"select $1::int as a","params":1}]}',
        b'{"statements":[]}',
        b'{"statements":[{}]}',
        b'{"statements":[""]}',
        b'{"statements":["-- nothing"]}',
        b"nonsense",
    )
    assert_same(wires, list(texts))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_errors_name_the_same_statement(wires: dict[str, Wire], position: int) -> None:
    failures: list[Sent] = [
        with_params("select 1 / $1::int as q", 0),
        "select 1 / 0 as q",
        with_params("select $1::int as n", "one"),
        with_params("select $1::int as n", 1, 2),
        with_params("select $1::int from nowhere_at_all", 1),
        with_params("insert into balance values ($1, 0)", 1),
        with_params("select 1 / (1000 - g) as q from generate_series($1::int, 2000) g", 1),
        "commit",
        "copy item to stdout",
    ]
    for failure in failures:
        statements: list[Sent] = [with_params(INSERT, "undone", 1), with_params(UPDATE, 1, "undone")]
        statements.insert(position, failure)
        assert_same(wires, [body(*statements)])
        # What can be right is right again on the same connection.
        assert_same(wires, [body(with_params("select count(*) as n from item where name = $1", "undone"))])


def test_slow_transactions_are_the_same(wires: dict[str, Wire]) -> None:
    before, after = with_params("select $1::int as n", 1), with_params("select $1::int as n", 2)
    assert_same(wires, [body(before, with_params(SLEEP, 40), after)])


def test_deadlines_are_the_same(wires: dict[str, Wire]) -> None:
    before, after = with_params("select $1::int as n", 1), with_params(INSERT, "slow", 1)
    assert_same(
        wires,
        [
            body(before, timeout_ms=99),
            body(before, after, with_params(SLEEP, 20_000), timeout_ms=250),
            body(with_params(SLEEP, 20_000), after, timeout_ms=250),
            body(with_params("select count(*) as n from item where name = $1", "slow")),
        ],
        tries=10,
    )


def test_each_statement_has_its_own_time(wires: dict[str, Wire]) -> None:
    wanted = body(with_params("select $1::int as n", 1), with_params(SLEEP, 20), with_params("select $1::int as n", 2))
    for wire in wires.values():
        slept_us = []
        for _ in range(5):
            answer = json.loads(wire.query(wanted)[1])
            times_us = [result["timings"]["exec_us"] for result in answer["results"]]
            assert sum(times_us) + answer["timings"]["commit_us"] == answer["timings"]["exec_us"]
            slept_us.append(times_us[1])
        # Its time begins when the result before it was read, which is late if the machine stands still meanwhile.
        assert max(slept_us) >= 10_000


def test_a_statement_whose_plan_is_stale_is_prepared_again(
    wires: dict[str, Wire], service: Service, database: str
) -> None:
    service.query("create table changing (id int, a int)", database=database)
    service.query("insert into changing values (1, 2)", database=database)
    wanted = body(with_params("select $1::int as n", 1), with_params("select * from changing where id = $1", 1))
    for column in ("b", "c"):
        assert_same(wires, [wanted])
        # Every node finds its plan stale once, and makes a second attempt.
        service.query(f"alter table changing add column {column} int", database=database)
        assert b'"attempts":2' in assert_same_once(wires, wanted)
    assert_same(wires, [wanted])


def test_sequences_do_not_show_in_the_next_request(wires: dict[str, Wire]) -> None:
    insert = with_params(INSERT, "numbered", 1)
    assert_same(
        wires,
        [
            body(insert, "select lastval() > 0 as numbered"),
            body("select lastval() as v"),
            body(insert),
            body(with_params("select $1::int as n", 1), "select lastval() as v"),
            body(insert, insert),
            body(with_params("select currval($1) > 0 as v", "item_id_seq")),
        ],
    )


def test_a_transaction_that_conflicts_is_tried_again(wires: dict[str, Wire], service: Service, database: str) -> None:
    select = with_params("select amount from balance where id = $1", 1)
    assert_same(wires, [body(with_params(ADD, 0, 1), select)])
    wanted = body(with_params(ADD, 1, 1), select)
    answers = {}
    for mode, wire in wires.items():
        service.query("update balance set amount = 0 where id = 1", database=database)
        with engine_of(service, database) as other:
            other.execute("begin isolation level serializable")
            other.execute("update balance set amount = 10 where id = 1")
            wire.send(wire.bytes_of(wanted))
            wait_until_one(service, database, "wait_event_type = 'Lock'")
            other.execute("commit")
        answers[mode] = same(wire.answer())
    assert b'"attempts":2' in answers["off"][1]
    assert b'"rows":[{"amount":11}]' in answers["off"][1]
    assert answers == dict.fromkeys(MODES, answers["off"])


def test_a_transaction_whose_backend_is_lost_has_the_same_outcome(
    wires: dict[str, Wire], service: Service, database: str
) -> None:
    insert = with_params(INSERT, "lost", 1)
    assert_same(wires, [body(with_params(INSERT, "kept", 1), with_params(SLEEP, 1))])
    end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and {}"
    answers = {}
    for mode, wire in wires.items():
        wire.send(wire.bytes_of(body(insert, with_params(SLEEP, 60_000))))
        wait_until_one(service, database, SLEEPS)
        with engine_of(service, database) as other:
            other.execute(end.format(SLEEPS))
        answers[mode] = same(wire.answer())
    assert b'"outcome":"rolled_back"' in answers["off"][1]
    assert answers == dict.fromkeys(MODES, answers["off"])
    assert service.value("select count(*) as n from item where name = 'lost'", database=database) == 0
    assert_same(wires, [body(insert, with_params(SLEEP, 1))])


@pytest.mark.parametrize("mode", MODES)
def test_no_increment_is_lost_or_made_twice(nodes: dict[str, Node], service: Service, database: str, mode: str) -> None:
    service.query("update balance set amount = 0 where id = 5", database=database)
    wanted = body(with_params("select amount from balance where id = $1", 5), with_params(ADD, 1, 5))
    clients, each = 6, 25
    succeeded: list[bool] = []

    def increment() -> None:
        wire = Wire(nodes[mode].port, service.api_key, f"X-Database: {database}\r\n", PATH)
        for _ in range(each):
            succeeded.append(json.loads(wire.query(wanted)[1])["success"])
        wire.close()

    threads = [threading.Thread(target=increment) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(succeeded) == clients * each
    assert service.value("select amount from balance where id = 5", database=database) == sum(succeeded)
    assert any(succeeded)


@pytest.mark.parametrize("mode", MODES)
def test_a_transaction_whose_client_disconnects_is_cancelled(
    nodes: dict[str, Node], service: Service, database: str, mode: str
) -> None:
    head = f"X-Database: {database}\r\n"
    statements = with_params(INSERT, f"gone {mode}", 1), with_params(SLEEP, 1)
    wire = Wire(nodes[mode].port, service.api_key, head, PATH)
    for _ in range(3):
        assert b'"success":true' in wire.query(body(*statements))[1]
    wire.send(wire.bytes_of(body(statements[0], with_params(SLEEP, 60_000))))
    wait_until_one(service, database, SLEEPS)
    wire.close()
    wait_until_none(service, database, SLEEPS)
    count = f"select count(*) as n from item where name = 'gone {mode}'"
    assert service.value(count, database=database) == 3
    with wires_of({mode: nodes[mode]}, service.api_key, head, PATH) as again:
        assert b'"attempts":1' in again[mode].query(body(*statements))[1]


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["off", "on", "sent"])
def test_a_transaction_that_runs_at_shutdown_is_finished(service: Service, database: str, mode: str) -> None:
    statements = with_params(INSERT, f"stopped {mode}", 1), with_params(SLEEP, 1)
    with running_node(service.directory_dsn, fast_lane=mode) as node:
        wire = Wire(node.port, service.api_key, f"X-Database: {database}\r\n", PATH)
        for _ in range(3):
            wire.query(body(*statements))
        wire.send(wire.bytes_of(body(statements[0], with_params(SLEEP, 500))))
        wait_until_one(service, database, SLEEPS)
        node.process.send_signal(signal.SIGTERM)
        head, answer = wire.answer()
        wire.close()
    assert b'"success":true' in answer
    assert b"connection: close" in head
    count = f"select count(*) as n from item where name = 'stopped {mode}'"
    assert service.value(count, database=database) == 4


def test_transactions_are_counted_and_logged_as_on_the_ordinary_path(service: Service) -> None:
    requests = [body(with_params(SERIES, number % 5), with_params("select $1::text as t", "x")) for number in range(40)]
    seen: dict[str, Any] = {}
    for mode in ("off", "on"):
        name = f"lane-counted-{mode}"
        service.customers.add_database(name, "dev")
        metrics_port = free_port()
        with running_node(service.directory_dsn, fast_lane=mode, metrics_port=metrics_port, drain_ms=0) as node:
            wire = Wire(node.port, service.api_key, f"X-Database: {name}\r\n", PATH)
            for each in requests:
                assert json.loads(wire.query(each)[1])["success"]
            wire.close()
            wait_for(lambda node=node: len(logged(node, PATH)) == len(requests), 30, node.failures)
            metrics = counted(metrics_port)
            # The lane writes its lines in batches. One that it hands over may be written before earlier ones.
            lines = sorted(logged(node, PATH), key=lambda line: (line["row_count"], line["command"]))
            node.stop()
        usage = used(service, name)
        seen[mode] = (
            {each: value for each, value in metrics.items() if is_of_requests(each)},
            [tuple(line) for line in lines],
            [(line["status"], line["row_count"], line["command"], line["key_id"]) for line in lines],
            usage["requests"],
            usage["rows"],
            usage["bytes"],
        )
        # The first one never takes the lane. On a busy machine, others must look up their caller again, or are slow.
        taken = total(metrics, "plainsql_lane_requests_total")
        assert taken == 0 if mode == "off" else len(requests) * 0.9 <= taken < len(requests)
        handed_over = total(metrics, "plainsql_lane_handed_over_total")
        assert handed_over == metrics.get('plainsql_lane_handed_over_total{reason="slow"}', 0)
    assert seen["on"] == seen["off"]


def is_of_requests(name: str) -> bool:
    """Whether a metric counts requests or rows, or shows what is in use, and does not depend on time."""
    return name.startswith(("plainsql_requests_total", "plainsql_rows_total", "plainsql_cell_", "plainsql_errors"))


def test_queries_and_transactions_share_a_connection(service: Service, database: str) -> None:
    metrics_port = free_port()
    with running_node(service.directory_dsn, fast_lane="on", metrics_port=metrics_port) as node:
        wire = Wire(node.port, service.api_key, f"X-Database: {database}\r\n")
        for number in range(20):
            wire.path = "/v1/query"
            assert json.loads(wire.query(with_params("select $1::int as n", number))[1])["rows"] == [{"n": number}]
            wire.path = PATH
            answer = json.loads(wire.query(body(with_params("select $1::int + 1 as n", number)))[1])
            assert answer["results"][0]["rows"] == [{"n": number + 1}]
        wire.close()
        # Each of the two was read by the parser once, and prepared once.
        assert counted(metrics_port)["plainsql_lane_requests_total"] >= 36


def assert_same_once(wires: dict[str, Wire], wanted: dict[str, Any]) -> bytes:
    """Sends a request to each node. Returns the body that all answer with."""
    answers = {mode: same(wire.query(wanted)) for mode, wire in wires.items()}
    assert answers == dict.fromkeys(MODES, answers["off"])
    return answers["off"][1]


def engine_of(service: Service, database: str) -> psycopg.Connection:
    """A connection past the service."""
    return service.engine(service.value("select current_database()", database=database))


def backends(service: Service, database: str, condition: str) -> int:
    """How many backends of a database are in a certain state."""
    with engine_of(service, database) as engine:
        found = engine.execute(
            "select count(*) from pg_stat_activity where datname = current_database()"
            f" and pid <> pg_backend_pid() and {condition}"
        ).fetchone()
    assert found is not None
    return int(found[0])


def wait_until_one(service: Service, database: str, condition: str) -> None:
    wait_for(lambda: backends(service, database, condition) == 1, 60, lambda: condition)


def wait_until_none(service: Service, database: str, condition: str) -> None:
    wait_for(lambda: backends(service, database, condition) == 0, 60, lambda: condition)
