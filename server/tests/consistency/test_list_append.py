"""List-append through the service: whatever dies or is cut meanwhile, an order explains all that clients saw.

`make soak` runs the full sizes: `PLAINSQL_TEST_TRANSACTIONS=26000` for each of the two tables, and
`PLAINSQL_TEST_FAULTS=5` of each kind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from server.tests.cell import Cell, running_cell
from server.tests.consistency import history
from server.tests.consistency.faults import Fault, committed_more, kill_engine, kill_worker, run_with_faults
from server.tests.consistency.transports import DEADLOCK_TIMEOUT_MS, HttpTransport, Statement
from server.tests.consistency.wire import wire_to_engine, wire_to_service
from server.tests.consistency.workload import ARRAYS, ROWS, Table, Workload
from server.tests.load import Client, Node, in_full, running_node, size

# As many as the control, which shows that anomalies would be found in so many.
TRANSACTIONS = size("PLAINSQL_TEST_TRANSACTIONS", 400)
FAULTS = size("PLAINSQL_TEST_FAULTS", 1)
# The transactions that are committed before each fault, and after the last.
BETWEEN_FAULTS = size("PLAINSQL_TEST_TRANSACTIONS_BETWEEN_FAULTS", 150)
CONTROL_TRANSACTIONS = size("PLAINSQL_TEST_CONTROL_TRANSACTIONS", 400)
# Clients of two worker processes.
CLIENTS = 16
WORKERS = 2
LIMIT_S = 60 + TRANSACTIONS / 50 + FAULTS * 30
TABLES = {"arrays": ARRAYS, "rows": ROWS}

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    with running_cell() as running:
        with running.postgres.connect() as admin:
            admin.execute(f"alter system set deadlock_timeout = {DEADLOCK_TIMEOUT_MS}".encode())
            admin.execute("select pg_reload_conf()")
        yield running


@pytest.fixture(scope="module")
def node(cell: Cell) -> Iterator[Node]:
    with serving(cell) as running:
        yield running


@contextmanager
def serving(cell: Cell) -> Iterator[Node]:
    with running_node(cell.directory_dsn, workers=WORKERS, cell_max_connections=24) as node:
        yield node


def new_workload(cell: Cell, table: Table, port: int) -> Workload:
    table.make_anew(cell.customer_dsn())
    return Workload(table, [HttpTransport(Client(port, cell.key)) for _ in range(CLIENTS)])


def has_committed(workload: Workload, count: int) -> bool:
    return workload.committed >= count


@pytest.mark.parametrize("table", TABLES)
async def test_an_order_explains_what_clients_saw(cell: Cell, node: Node, table: str) -> None:
    workload = new_workload(cell, TABLES[table], node.port)
    await workload.run(partial(has_committed, workload, TRANSACTIONS), LIMIT_S)
    workload.require_clean(workload.check_history(f"{table} over HTTP"))


@pytest.mark.parametrize("isolation", ["read committed", in_full("repeatable read")])
async def test_with_a_weaker_isolation_put_under_the_service_anomalies_are_found(cell: Cell, isolation: str) -> None:
    with (
        wire_to_engine(cell.postgres.socket_dir, isolation) as (_, folder),
        cell.reached_through(folder),
        serving(cell) as node,
    ):
        for name, table in TABLES.items():
            workload = new_workload(cell, table, node.port)
            isolations = await workload.transports[0].run([Statement("show transaction_isolation")])
            assert isolations.rows[0] == [[isolation]]
            await workload.run(partial(has_committed, workload, CONTROL_TRANSACTIONS), LIMIT_S)
            report = workload.check_history(f"control: {name} over HTTP at {isolation}")
            assert report.anomalies


async def run_with(workload: Workload, fault: Fault) -> None:
    await run_with_faults(workload, [fault] * FAULTS, BETWEEN_FAULTS, LIMIT_S)


@pytest.mark.parametrize("table", ["arrays", in_full("rows")])
async def test_killing_postgresql_under_load_causes_no_anomaly(cell: Cell, node: Node, table: str) -> None:
    workload = new_workload(cell, TABLES[table], node.port)
    await run_with(workload, lambda: kill_engine(cell))
    workload.require_clean(workload.check_history(f"{table}, engine killed {FAULTS} times"))


@pytest.mark.parametrize("table", [in_full("arrays"), "rows"])
async def test_killing_a_worker_under_load_causes_no_anomaly(cell: Cell, node: Node, table: str) -> None:
    workload = new_workload(cell, TABLES[table], node.port)
    await run_with(workload, lambda: kill_worker(node))
    workload.require_clean(workload.check_history(f"{table}, worker killed {FAULTS} times"))


@pytest.mark.parametrize("table", ["arrays", in_full("rows")])
async def test_cutting_connections_under_load_causes_no_anomaly(cell: Cell, table: str) -> None:
    """Cut between clients and service, and between service and engine; half of them when an answer is due."""
    with (
        wire_to_engine(cell.postgres.socket_dir) as (engine_wire, folder),
        cell.reached_through(folder),
        serving(cell) as node,
        wire_to_service(node.port) as service_wire,
    ):

        async def cut() -> None:
            engine_wire.cut()
            await committed_more(workload, BETWEEN_FAULTS)
            service_wire.cut()

        workload = new_workload(cell, TABLES[table], service_wire.port)
        await run_with(workload, cut)
    report = workload.check_history(f"{table}, connections cut {FAULTS} times on both sides")
    workload.require_clean(report)
    assert report.outcomes[history.Outcome.INFO] > 0, "nothing was cut while it mattered"
