"""Random requests get the same answers with the fast lane and without it, and leave the same behind.

Two nodes, one without the lane, get the same requests, each for databases of its own that were equal before. The
answers must be the same bytes but for ids and times, and afterwards metrics, usage and data must be the same.

`PLAINSQL_TEST_LANE_REQUESTS=50000` is the full size; `PLAINSQL_TEST_LANE_SEED` repeats a run.
"""

import random
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from plainsql_server.dev.ports import free_port
from plainsql_server.lane.opening import PATHS
from server.tests.end_to_end.lane_requests import CODE, SETUP, Requests, Sent
from server.tests.end_to_end.wires import Wire, counted, same, total, without_oids
from server.tests.load import Node, running_node, size
from server.tests.processes import wait_for
from server.tests.service import Service

REQUESTS = size("PLAINSQL_TEST_LANE_REQUESTS", 600)
SEED = size("PLAINSQL_TEST_LANE_SEED", secrets.randbelow(1 << 32))

pytestmark = [pytest.mark.compiled, pytest.mark.timeout(180 + REQUESTS // 20)]


@dataclass
class Side:
    """A node, its databases and its connections."""

    node: Node
    key: str
    metrics_port: int
    # Without code, and with it.
    databases: tuple[str, str]
    wires: dict[int, Wire] = field(default_factory=dict)

    def ask(self, sent: Sent) -> tuple[bytes, bytes]:
        wire = self.wires.get(sent.connection) or self._opened(sent.connection)
        data, start = self.bytes_of(sent), 0
        for cut in sent.cuts:
            wire.send(data[start : int(cut * len(data))])
            start = int(cut * len(data))
        wire.send(data[start:])
        head, body = wire.answer()
        if b"connection: close" in head:
            self._opened(sent.connection)
        return head, body

    def bytes_of(self, sent: Sent) -> bytes:
        # One connection in three is for the database with code.
        database = self.databases[sent.connection % 3 == 2]
        length, body = f"Content-Length: {len(sent.body)}", sent.body
        if sent.is_chunked:
            length, body = "Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        values = {
            "{key}": f"Authorization: Bearer {self.key}", "{database}": f"X-Database: {database}",
            "{length}": length,
        }  # fmt: skip
        string = f"Neon-Connection-String: postgresql://app:{self.key}@db.example.com/{database}"
        lines = [values.get(line, line.replace("{string}", string)) for line in sent.lines]
        return "\r\n".join([f"POST {sent.path} HTTP/1.1", *lines, "", ""]).encode() + body

    def _opened(self, connection: int) -> Wire:
        if connection in self.wires:
            self.wires[connection].close()
        self.wires[connection] = Wire(self.node.port, self.key)
        return self.wires[connection]

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()


@pytest.fixture
def sides(service: Service) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:
        made = []
        for mode in ("off", "on"):
            databases = (f"lane-{mode:x<3}-bare", f"lane-{mode:x<3}-code")
            for name in databases:
                service.customers.add_database(name, "dev")
                for sql in SETUP:
                    service.query(sql, database=name)
            for sql in CODE:
                service.query(sql, database=databases[1])
            port = free_port()
            # With one connection, the state of a session depends on nothing but the requests before.
            settings = {"pool_max_connections": 1, "usage_flush_ms": 3_600_000, "drain_ms": 0}
            # Nor does an answer depend on a directory that is late because the machine stands still. It is less than a
            # statement's deadline, because the first statement that may store code waits as long.
            settings["principal_cache_ms"] = 10_000
            node = stack.enter_context(
                running_node(service.directory_dsn, fast_lane=mode, metrics_port=port, **settings)
            )
            side = Side(node, service.api_key, port, databases)
            stack.callback(side.close)
            made.append(side)
        yield made[0], made[1]


def test_random_requests_get_the_same_answers(sides: tuple[Side, Side], service: Service) -> None:
    print(f"PLAINSQL_TEST_LANE_SEED={SEED}")
    chance = random.Random(SEED)  # a test
    requests = Requests(chance)
    for number in range(REQUESTS):
        sent = requests.next()
        off, on = (same(side.ask(sent)) for side in sides)
        assert without_names(on) == without_names(off), (SEED, number, sent)
    metrics = [quiet_metrics(side) for side in sides]
    taken = total(metrics[1], "plainsql_lane_requests_total")
    print(f"{REQUESTS} requests, {taken / REQUESTS:.0%} of them on the lane; ", end="")
    print({name: value for name, value in metrics[1].items() if name.startswith("plainsql_lane_") and value})
    assert total(metrics[0], "plainsql_lane_requests_total") == 0
    assert taken > REQUESTS * 0.2
    assert compared(metrics[1]) == compared(metrics[0])
    for side in sides:
        side.close()
        side.node.stop()
    for names in zip(*(side.databases for side in sides), strict=True):
        assert_equal(service, *names)


def assert_equal(service: Service, off_name: str, on_name: str) -> None:
    """Two databases have the same content and the same usage."""
    # The service that has filled them counts, too, and writes it down when it is time.
    wait_for(lambda: usage(service, on_name) == usage(service, off_name), 30, lambda: str(usage(service, on_name)))
    for sql in ("select * from item order by id", "select last_value, is_called from item_id_seq"):
        assert service.query(sql, database=on_name)["rows"] == service.query(sql, database=off_name)["rows"]


def without_names(answer: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    head, body = without_oids(answer)
    return head, body.replace(b"lane-onx-", b"lane-off-")


def quiet_metrics(side: Side) -> dict[str, float]:
    """The metrics, once everything has been counted and every connection is clean again."""
    is_quiet = {'plainsql_cell_running{cell="dev"}': 0, 'plainsql_cell_waiting{cell="dev"}': 0}

    def is_done() -> bool:
        metrics = counted(side.metrics_port)
        finished = sum(value for name, value in metrics.items() if is_of_route(name, "plainsql_requests_total"))
        return finished == REQUESTS and all(metrics.get(name) == value for name, value in is_quiet.items())

    wait_for(is_done, 30, side.node.failures)
    return counted(side.metrics_port)


def compared(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that must not depend on the lane."""
    wanted = ("plainsql_errors", "plainsql_rows", "plainsql_permits", "plainsql_streams", "plainsql_cell_")
    found = {name: value for name, value in metrics.items() if name.startswith(wanted) and "_created" not in name}
    for name, value in metrics.items():
        # How often each was asked for its health differs.
        if is_of_route(name, "plainsql_requests_total") or is_of_route(name, "plainsql_request_seconds_count"):
            found[name] = value
    return found


def is_of_route(sample: str, metric: str) -> bool:
    """Whether a sample counts requests for one of the routes that the lane answers."""
    return sample.startswith(tuple(f'{metric}{{route="{path}"' for path in PATHS))


def usage(service: Service, database: str) -> tuple[int, int, int]:
    """What was counted for a database: requests, rows and bytes."""
    with service.engine("plainsql_directory") as directory:
        row = directory.execute(
            "SELECT sum(u.requests)::int, sum(u.rows)::int, sum(u.bytes)::int FROM usage u"
            " JOIN databases d ON d.id = u.database_id WHERE d.name = %s",
            (database,),
        ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]
