"""Round trips between the service and PostgreSQL, counted on the wire: an ordinary statement costs exactly one."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server.tests.end_to_end import tenants, transactions
from server.tests.end_to_end.relay import PORT, Relay
from server.tests.end_to_end.transactions import Sent, ref, with_params
from server.tests.service import Service, running_service

REQUESTS = 4
ORDINARY: list[tuple[str, list[Any]]] = [
    ("select 1", []),
    ("select * from ledger where id = 1", []),
    ("select * from ledger where id = $1", [1]),
    ("select count(*), max(lower(note)) from ledger where id in ($1, $2)", [1, 2]),
    ("insert into ledger (note) values ('a')", []),
    ("insert into ledger (note) values ($1) returning id", ["a"]),
    ("insert into ledger (note) values ($1) on conflict (id) do nothing", ["went into the night"]),
    ("update ledger set note = 'b' where id = 1", []),
    ("update ledger set note = $2 where id = $1", [1, "b"]),
    ("delete from ledger where id = -1", []),
    ("delete from ledger where id = $1 returning *", [-1]),
    ("with old as (select id from ledger) select * from old where id = $1", [1]),
]


@dataclass(frozen=True)
class Wired:
    """A database of its own that the service reaches through the relay only."""

    service: Service
    relay: Relay

    def query(self, sql: str, *params: Any, **fields: Any) -> dict[str, Any]:
        return self.service.query(sql, *params, database="wired", **fields)

    def bursts_of(self, sql: str, params: list[Any]) -> int:
        return self.fewest_bursts(lambda: self.query(sql, *params))

    def fewest_bursts(self, request: Callable[[], object]) -> int:
        """Of some tries: a statement that takes long, because the machine stood still, is cleaned up after, which
        is counted with the next one.
        """
        return min(self.bursts_while(request) for _ in range(2 * REQUESTS))

    def bursts_while(self, request: Callable[[], object]) -> int:
        self.relay.bursts.clear()
        request()
        return len(self.relay.bursts)

    def read(self, key: str, sql: str) -> None:
        response = self.service.call("POST", "/v1/query", key=key, json={"sql": sql, "database": "wired"})
        assert response.json()["success"], response.text


@pytest.fixture(scope="module")
def wired() -> Iterator[Wired]:
    # A service of its own: its directory gets a cell that is gone afterwards, which would fail others' health.
    with running_service() as service:
        yield from _wired(service)


def _wired(service: Service) -> Iterator[Wired]:
    service.customers.add_database("wired")
    folder = Path(tempfile.mkdtemp(prefix="plainsql-test-"))
    with Relay(folder, service.dev["postgres"]["socket"]) as relay:
        _move_to_cell(service, f"host={folder} port={PORT}")
        running = Wired(service, relay)
        running.query("create table ledger (id serial primary key, note text)")
        running.query("insert into ledger (note) values ('first')")
        yield running
    shutil.rmtree(folder)


def _move_to_cell(service: Service, conninfo: str) -> None:
    """The same server under another address is another cell to the service. Nothing knows the database yet."""
    with service.engine("plainsql_directory") as directory:
        directory.execute(
            "insert into cells (id, name, conninfo, admin_role, state)"
            " select id || 'x', 'relay', %s, admin_role, state from cells where name = 'dev'",
            (conninfo,),
        )
        directory.execute(
            "update databases set cell_id = (select id from cells where name = 'relay') where name = 'wired'"
        )


@pytest.mark.parametrize(("sql", "params"), ORDINARY)
def test_an_ordinary_statement_costs_one_round_trip(wired: Wired, sql: str, params: list[Any]) -> None:
    wired.query(sql, *params)
    assert wired.bursts_of(sql, params) == 1


@pytest.mark.parametrize(("sql", "params"), ORDINARY[:4])
def test_a_statement_after_an_insert_with_a_sequence_costs_one_round_trip(
    wired: Wired, sql: str, params: list[Any]
) -> None:
    insert = "insert into ledger (note) values ($1)"
    wired.query(insert, "a")
    wired.query(sql, *params)
    assert wired.fewest_bursts(lambda: (wired.query(insert, "a"), wired.query(sql, *params))) == 2


def test_preparing_a_statement_costs_one_round_trip_more_once(wired: Wired) -> None:
    wired.query("select 1")
    # Each is new to the connection.
    unknown = (f"select id + {number} + $1 from ledger" for number in range(2 * REQUESTS))
    assert wired.fewest_bursts(lambda: wired.query(next(unknown), 1)) == 2
    assert wired.bursts_of("select id + 0 + $1 from ledger", [1]) == 1


def test_a_read_only_request_costs_one_round_trip_though_it_is_a_transaction(wired: Wired) -> None:
    wired.query("select 1", read_only=True)
    assert wired.fewest_bursts(lambda: wired.query("select 1", read_only=True)) == 1


def test_a_read_key_costs_one_round_trip_as_well(wired: Wired) -> None:
    key = tenants.read_key(wired.service)
    wired.read(key, "select * from ledger where id = 1")
    assert wired.fewest_bursts(lambda: wired.read(key, "select * from ledger where id = 1")) == 1


FIVE: list[Sent] = [
    with_params("update ledger set note = $2 where id = $1", 1, "b"),
    with_params("select note from ledger where id = $1", 1),
    with_params("insert into ledger (note) values ($1) returning id", "c"),
    "select count(*) from ledger",
    with_params("delete from ledger where id = $1", -1),
]


def bursts_of_transaction(wired: Wired, *statements: Sent, succeeds: bool = True, **fields: Any) -> list[bytes]:
    """What goes over the wire when everything is prepared.

    The fewest of some tries: a transaction that takes long on a busy machine is cleaned up after, which is counted
    with the next one, or has that one open a connection.
    """
    tries = []
    for _ in range(2 * REQUESTS):
        wired.relay.bursts.clear()
        response = transactions.post(wired.service, *statements, database="wired", **fields)
        assert response.json()["success"] == succeeds, response.text
        tries.append(list(wired.relay.bursts))
    return min(tries, key=len)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_transaction_costs_one_round_trip(wired: Wired, read_only: bool) -> None:
    statements = FIVE if not read_only else [FIVE[1], FIVE[3], "select 1"]
    (burst,) = bursts_of_transaction(wired, *statements, read_only=read_only)
    assert b"begin isolation level serializable" in burst
    assert b"\0commit\0" in burst


def test_naming_the_database_in_every_statement_costs_a_transaction_nothing(wired: Wired) -> None:
    """What could span databases and does not is committed in one phase, and leaves no record in the directory."""
    named = [{**(with_params(each) if isinstance(each, str) else each), "database": "wired"} for each in FIVE]
    (burst,) = bursts_of_transaction(wired, *named)
    assert b"\0commit\0" in burst
    assert b"prepare transaction" not in burst
    with wired.service.engine("plainsql_directory") as directory:
        assert directory.execute("select from spanning_transactions").fetchall() == []


def test_each_dependency_costs_a_transaction_one_round_trip_more(wired: Wired) -> None:
    insert = with_params("insert into ledger (note) values ($1) returning id", "c")
    refers = with_params("select * from ledger where id = $1", ref("0.rows.0.id"))
    assert len(bursts_of_transaction(wired, insert, refers)) == 2
    assert len(bursts_of_transaction(wired, insert | {"expect": {"affected_rows": 1}}, "select 1")) == 2
    assert len(bursts_of_transaction(wired, insert, refers | {"expect": {"row_count": 1}})) == 3


def test_a_transaction_that_fails_costs_two_round_trips(wired: Wired) -> None:
    """The second one is the rollback: without it the connection could not be used again."""
    statements = ("insert into ledger (note) values ('x')", "select 1 / 0", "select 1")
    assert len(bursts_of_transaction(wired, *statements, succeeds=False)) == 2


def test_a_statement_that_fails_costs_one_round_trip(wired: Wired) -> None:
    wired.query("select 1")
    assert wired.fewest_bursts(lambda: wired.service.post_query("select 1 / 0", database="wired")) == 1
    assert not wired.service.post_query("select 1 / 0", database="wired").json()["success"]


@pytest.mark.parametrize(
    "sql", ["select set_config('app.x', '1', false)", "set work_mem = '1MB'", "create temp table gone ()"]
)
def test_the_answer_leaves_before_the_session_is_cleaned(wired: Wired, sql: str) -> None:
    wired.query("select 1")
    with wired.relay.holding_after(sql.encode()):
        answer = wired.query(sql)
        # The answer is here, and the cleaning has not even reached the engine.
        assert answer["success"]
        assert wired.relay.held.wait(30)
    assert wired.service.value("select current_setting('app.x', true)", database="wired") in (None, "")


def test_an_ordinary_statement_needs_no_further_round_trip(wired: Wired) -> None:
    """Whatever came late would be counted with the next request."""
    wired.query("insert into ledger (note) values ('a')")
    statements = ("select 1", "insert into ledger (note) values ('a')", "delete from ledger where id = -1", "select 1")
    assert wired.fewest_bursts(lambda: [wired.query(sql) for sql in statements]) == len(statements)
