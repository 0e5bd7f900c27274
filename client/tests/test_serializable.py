"""Interactive transactions are serializable: an order explains all that programs with code in between read and wrote.

PostgreSQL, a worker process and a whole data plane are killed meanwhile. The controls switch verification off, and the
same checks then fail. `make soak PART=client` runs the full sizes: `PLAINSQL_TEST_UNITS=10000` committed units of each
of the three programs, `PLAINSQL_TEST_UNIT_FAULTS=5` of each kind for each, and `PLAINSQL_TEST_INVARIANTS=2000`.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest

import plainsql
from client.tests.units import PROGRAMS, UnitLists, UnitTransport, UnitWorkload, UnverifiedCore
from plainsql.interactive.conflicts import is_conflict
from server.tests.cell import Cell, running_cell
from server.tests.consistency.faults import kill_engine, kill_node, kill_worker, run_with_faults
from server.tests.consistency.transports import DEADLOCK_TIMEOUT_MS
from server.tests.load import Node, all_of, running_node, size

UNITS = size("PLAINSQL_TEST_UNITS", 120)
FAULTS = size("PLAINSQL_TEST_UNIT_FAULTS", 1)
INVARIANTS = size("PLAINSQL_TEST_INVARIANTS", 150)
# A control ends with the first round that shows what verification prevents.
CONTROL_ROUNDS = 20
CONTROL_UNITS = 100
CLIENTS = 6
# Enough that most units commit, few enough that many conflict.
ACTIVE_LISTS = 20
LIMIT_S = 90 + UNITS / 10 + FAULTS * 60
PAIRS = 3
TOTAL = 200
_CHANGE = "update accounts set balance = balance + $3 where pair = $1 and side = $2"
_BALANCE = "select balance from accounts where pair = $1 and side = $2"

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
    with running_node(cell.directory_dsn, workers=2, cell_max_connections=24) as running:
        yield running


def new_client(cell: Cell, node: Node) -> plainsql.AsyncClient:
    return plainsql.connect_async(f"http://127.0.0.1:{node.port}", cell.key)


def unverified(client: plainsql.AsyncClient, *, commits: bool, rehearsals: bool) -> plainsql.AsyncClient:
    """The client, with verification switched off in its commits or in its rehearsals."""
    client._core = UnverifiedCore(client._core, commits=commits, rehearsals=rehearsals)
    return client


def new_workload(cell: Cell, program: str, clients: list[plainsql.AsyncClient]) -> UnitWorkload:
    chosen = PROGRAMS[program]
    chosen.table.make_anew(cell.customer_dsn())
    transports = [UnitTransport(each) for each in clients]
    return UnitWorkload(chosen.table, transports, UnitLists(seed=1, active=ACTIVE_LISTS), program=chosen)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_an_order_explains_what_programs_saw_whatever_is_killed(cell: Cell, node: Node, program: str) -> None:
    faults = [lambda: kill_engine(cell), lambda: kill_worker(node), lambda: kill_node(node)] * FAULTS
    workload = new_workload(cell, program, [new_client(cell, node) for _ in range(CLIENTS)])
    await run_with_faults(workload, faults, UNITS // (len(faults) + 1) + 1, LIMIT_S)
    report = workload.check_history(f"units of {program}, {len(faults)} kills, {workload.conflicts} conflicts")
    workload.require_clean(report)
    assert workload.committed >= UNITS
    assert workload.conflicts > UNITS // 50, "the units hardly met"


@pytest.mark.parametrize("program", PROGRAMS)
async def test_without_verification_at_the_commit_anomalies_are_found(cell: Cell, node: Node, program: str) -> None:
    for _ in range(CONTROL_ROUNDS):
        clients = [unverified(new_client(cell, node), commits=False, rehearsals=True) for _ in range(CLIENTS)]
        workload = new_workload(cell, program, clients)
        await workload.run(lambda: workload.committed >= CONTROL_UNITS, LIMIT_S)  # noqa: B023  # awaited here
        report = workload.check_history(f"control: units of {program} that are not verified")
        if report.anomalies:
            return
    pytest.fail(f"{CONTROL_ROUNDS} rounds show no anomaly")


class Transfers:
    """Units that move money within pairs of accounts, and look at the sum of both before they commit or roll back."""

    def __init__(self, cell: Cell, clients: list[plainsql.AsyncClient]) -> None:
        self.seen: Counter[str] = Counter()
        self._clients = clients
        self._chance = random.Random(1)
        self._dsn = cell.customer_dsn()
        with psycopg.connect(self._dsn, autocommit=True) as admin:
            admin.execute("drop table if exists accounts")
            admin.execute("create table accounts (pair int, side int, balance int not null, primary key (pair, side))")
            admin.execute(
                "insert into accounts select p, s, 100 from generate_series(1, %s) p, (values (0), (1)) a(s)", (PAIRS,)
            )
            admin.execute("grant all on accounts to public")

    async def run(self, enough: Callable[[], bool]) -> None:
        async def work(number: int) -> None:
            while not enough():
                try:
                    await self._transfer(self._clients[number])
                except plainsql.Error as error:
                    if not is_conflict(error):
                        raise
                    self.seen["conflicts"] += 1
            self._clients[number].close()

        await all_of(len(self._clients), work, parallel=len(self._clients))

    async def _transfer(self, client: plainsql.AsyncClient) -> None:
        """Each statement is a request of its own, and others commit in between."""
        pair, amount = self._chance.randint(1, PAIRS), self._chance.randint(1, 50)
        async with client.transaction() as unit:
            balances = []
            for side, change in ((0, -amount), (1, amount)):
                await unit.query(_CHANGE, pair, side, change)
                balances.append((await unit.query(_BALANCE, pair, side)).value())
            self.seen["wrong" if sum(balances) != TOTAL else "right"] += 1
            if self._chance.random() < 0.5:
                unit.rollback()
                return
        self.seen["committed"] += 1

    def sums(self) -> set[int]:
        """What the pairs have in the end."""
        with psycopg.connect(self._dsn) as admin:
            return {row[0] for row in admin.execute("select sum(balance)::int from accounts group by pair")}


async def test_an_invariant_holds_inside_uncommitted_units(cell: Cell, node: Node) -> None:
    transfers = Transfers(cell, [new_client(cell, node) for _ in range(CLIENTS)])
    await transfers.run(lambda: transfers.seen["right"] >= INVARIANTS)
    print(f"\nsums inside uncommitted units: {dict(transfers.seen)}")
    assert transfers.seen["wrong"] == 0
    assert transfers.seen["conflicts"] > 0, "the units never met"
    assert transfers.sums() == {TOTAL}


async def test_without_verification_in_rehearsals_the_invariant_fails(cell: Cell, node: Node) -> None:
    clients = [unverified(new_client(cell, node), commits=True, rehearsals=False) for _ in range(CLIENTS)]
    transfers = Transfers(cell, clients)
    await transfers.run(lambda: transfers.seen["wrong"] > 0 or transfers.seen["right"] > CONTROL_ROUNDS * CONTROL_UNITS)
    print(f"\ncontrol: sums that are not verified: {dict(transfers.seen)}")
    assert transfers.seen["wrong"] > 0
    # What was seen was wrong, but is verified at the commit.
    assert transfers.sums() == {TOTAL}
