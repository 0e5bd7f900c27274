"""Connections lost between COMMIT and its answer: the outcome is correct with a key, and never wrong without one.

`PLAINSQL_TEST_LOST_COMMITS=100` is the full size, for each kind of request.
"""

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.tests import plain_http
from server.tests.cell import Cell, new_cell
from server.tests.end_to_end.relay import PORT, Cut, Relay
from server.tests.load import Node, running_node, size
from server.tests.postgres import running_postgres

pytestmark = pytest.mark.chaos

CUTS = size("PLAINSQL_TEST_LOST_COMMITS", 12)
KILLS = size("PLAINSQL_TEST_LOST_COMMIT_KILLS", 2)
TIMEOUT_MS = 20_000

# The commit as it is on the wire. With a key it goes together with the record, which no other commit does.
COMMIT = b"\0commit\0"
RECORD = b"select plainsql.finish"


def cycled_cuts(sent: bytes, answer: bytes) -> list[Cut]:
    """Lost on the way there, lost on the way back, and lost when it was surely done; as often as the test is large."""
    cuts = [Cut(sent, forward=False), Cut(sent, forward=True), Cut(sent, forward=True, answer=answer)]
    return list(islice(cycle(cuts), CUTS))


@dataclass(frozen=True)
class Line:
    """A service whose only way to its cell is a relay, and what stands in the cell's table."""

    cell: Cell
    relay: Relay
    node: Node
    http: httpx.Client

    def call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.cell.key}", **arguments.pop("headers", {})}
        return self.http.request(method, f"http://127.0.0.1:{self.node.port}{path}", headers=headers, **arguments)

    def insert(self, number: int, *, keyed: bool, route: str = "/v1/transaction") -> httpx.Response:
        headers = {"Idempotency-Key": f"key-{number}"} if keyed else {}
        if route == "/v1/query":
            sql = f"insert into lost values ({number})"
            return self.call("POST", route, headers=headers, json={"sql": sql, "timeout_ms": TIMEOUT_MS})
        sql = "insert into lost values ($1)"
        statements: list[Any] = [{"sql": sql, "params": [number]}, "select count(*) from lost"]
        return self.call("POST", route, headers=headers, json={"statements": statements, "timeout_ms": TIMEOUT_MS})

    def recorded(self, number: int) -> str:
        """The outcome that is recorded, once the node no longer meets connections that were lost with the engine."""
        response = self.call("GET", f"/v1/requests/key-{number}")
        while response.status_code == 503 and response.json()["error"]["retryable"]:
            response = self.call("GET", f"/v1/requests/key-{number}")
        assert response.status_code == 200, response.text
        return str(response.json()["request"]["outcome"])

    def there(self) -> Counter[int]:
        with self.cell.postgres.connect() as admin:
            (name,) = admin.execute("select datname from pg_database where datname like 'd\\_%'").fetchone() or ("",)
        with self.cell.postgres.connect(database=name) as database:
            return Counter(row[0] for row in database.execute("select n from lost").fetchall())


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    folder = Path(tempfile.mkdtemp(prefix="plainsql-test-"))
    try:
        with running_postgres() as postgres, Relay(folder, postgres.socket_dir) as relay:
            cell = new_cell(postgres, f"host={folder} port={PORT}")
            with (
                running_node(cell.directory_dsn, cell_max_connections=32) as node,
                plain_http.client(timeout=60) as http,
            ):
                running = Line(cell, relay, node, http)
                # Without a constraint that would hide what is done twice.
                assert running.call("POST", "/v1/query", json={"sql": "create table lost (n int)"}).json()["success"]
                yield running
    finally:
        shutil.rmtree(folder)


def outcome_in(response: httpx.Response) -> str:
    body = response.json()
    return "committed" if body["success"] else str(body["error"]["outcome"])


def cut_often(line: Line, first: int, *, keyed: bool, route: str = "/v1/transaction") -> dict[int, str]:
    """The reported outcome of each insert whose connection was cut."""
    if keyed or route == "/v1/transaction":
        cuts = cycled_cuts(RECORD if keyed else COMMIT, b"COMMIT\0")
    else:
        # A statement without a transaction around it is committed by what follows it.
        cuts = cycled_cuts(b"\0insert into lost", b"INSERT 0 1\0")
    outcomes = {}
    for number, cut in enumerate(cuts, first):
        line.relay.cuts.append(cut)
        response = line.insert(number, keyed=keyed, route=route)
        assert not line.relay.cuts, "nothing was cut"
        outcomes[number] = outcome_in(response)
        assert response.status_code in (200, 503), response.text
    return outcomes


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("route", "first"), [("/v1/transaction", 1_000_000), ("/v1/query", 2_000_000)])
def test_with_a_key_the_reported_outcome_is_correct(line: Line, route: str, first: int) -> None:
    line.insert(first - 1, keyed=True, route=route)
    outcomes = cut_often(line, first, keyed=True, route=route)
    there = line.there()
    records = {number: line.recorded(number) for number in outcomes}
    print(f"{route} with a key: reported {Counter(outcomes.values())}, recorded {Counter(records.values())}")
    assert set(outcomes.values()) == {"committed", "rolled_back"}
    for number, outcome in outcomes.items():
        truth = "committed" if there[number] else "rolled_back"
        assert (outcome, there[number]) in ((truth, 0), (truth, 1)), number
        assert records[number] == ("committed" if there[number] else "not_executed"), number
    check_sent_again(line, outcomes, route)


def check_sent_again(line: Line, outcomes: dict[int, str], route: str) -> None:
    """Whatever came of it, sending it again with the same key makes it done once."""
    for number, outcome in outcomes.items():
        again = line.insert(number, keyed=True, route=route)
        assert again.json()["success"]
        assert ("idempotency-replayed" in again.headers) == (outcome == "committed")
    there = line.there()
    assert {there[number] for number in outcomes} == {1}


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("route", "first"), [("/v1/transaction", 3_000_000), ("/v1/query", 4_000_000)])
def test_without_a_key_the_reported_outcome_is_never_wrong(line: Line, route: str, first: int) -> None:
    line.insert(first - 1, keyed=False, route=route)
    outcomes = cut_often(line, first, keyed=False, route=route)
    there = line.there()
    print(f"{route} without a key: reported {Counter(outcomes.values())}")
    assert "unknown" in outcomes.values()
    for number, outcome in outcomes.items():
        assert there[number] <= 1
        assert outcome == "unknown" or (outcome == "committed") == bool(there[number]), number


def test_a_connection_lost_before_the_commit_was_sent_is_rolled_back(line: Line) -> None:
    """Between two exchanges of one transaction: nothing can have come of it."""
    first = 5_000_000
    statements: list[Any] = [
        {"sql": "insert into lost values ($1) returning n as before_it", "params": [first]},
        {"sql": "select $1::int as after_it", "params": [{"$ref": "0.rows.0.before_it"}]},
    ]
    line.call("POST", "/v1/transaction", json={"statements": statements})
    assert line.there()[first] == 1
    line.relay.cuts.append(Cut(RECORD, forward=False))
    statements[0]["params"] = [first + 1]
    # With a key the commit goes in a flush of its own, after the record of the answer.
    response = line.call(
        "POST", "/v1/transaction", json={"statements": statements}, headers={"Idempotency-Key": "before"}
    )
    assert outcome_in(response) == "rolled_back"
    line.relay.cuts.append(Cut(b"\0insert into lost", forward=True))
    statements[0] = {"sql": f"insert into lost values ({first + 2}) returning n as before_it"}
    assert outcome_in(line.call("POST", "/v1/transaction", json={"statements": statements})) == "rolled_back"
    assert not line.relay.cuts
    assert line.there()[first + 1] == line.there()[first + 2] == 0


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
def test_killing_postgresql_at_the_commit_keeps_the_reported_outcome_correct(line: Line, keyed: bool) -> None:
    first = 6_000_000 + 1_000 * keyed
    outcomes = {}
    for number in range(first, first + KILLS):
        line.insert(number + 500, keyed=keyed)
        line.relay.cuts.append(Cut(RECORD if keyed else COMMIT, forward=number % 2 == 0, then=line.cell.kill))
        starting = threading.Thread(target=start_when_killed, args=(line,))
        starting.start()
        outcomes[number] = outcome_when_cut(line, number, keyed=keyed)
        starting.join()
        wait_until_served(line)
    there = line.there()
    print(f"killed, keyed {keyed}: reported {outcomes}, there {[number for number in outcomes if there[number]]}")
    for number, outcome in outcomes.items():
        assert there[number] <= 1
        if keyed:
            assert outcome == ("committed" if there[number] else "rolled_back")
            assert line.recorded(number) == ("committed" if there[number] else "not_executed")
        else:
            assert outcome == "unknown" or (outcome == "committed") == bool(there[number])


def outcome_when_cut(line: Line, number: int, *, keyed: bool) -> str:
    """The reported outcome of the insert that met the cut."""
    while True:
        outcome = outcome_in(line.insert(number, keyed=keyed))
        if not (line.relay.cuts and outcome == "not_executed"):
            return outcome
        # An idle connection that ended with the killed PostgreSQL: the relay passes its end on a moment later.


def start_when_killed(line: Line) -> None:
    end_s = time.monotonic() + 20
    while line.relay.cuts and time.monotonic() < end_s:
        time.sleep(0.01)
    # The cut is taken before PostgreSQL is killed.
    while Path(f"/proc/{line.cell.postmaster_pid()}/stat").read_text().split()[2] not in "ZX":
        assert time.monotonic() < end_s
        time.sleep(0.01)
    line.cell.start()


def wait_until_served(line: Line) -> None:
    """Waits for the cell, and for the directory, which was killed with it."""
    end_s = time.monotonic() + 20
    while not (
        line.call("POST", "/v1/query", json={"sql": "select 1"}).is_success
        and line.call("GET", "/v1/requests/unheard-of").is_success
    ):
        assert time.monotonic() < end_s
        time.sleep(0.02)
