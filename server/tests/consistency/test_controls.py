"""The same transactions where nobody keeps them serializable: the checker must find what that leads to.

A workload that shows nothing at a weaker isolation would prove nothing at SERIALIZABLE.
`PLAINSQL_TEST_CONTROL_TRANSACTIONS=3000` is the full size.
"""

from collections.abc import Iterator

import pytest

from server.tests.consistency.transports import DirectTransport
from server.tests.consistency.workload import ARRAYS, ROWS, Table, Workload
from server.tests.load import in_full, size
from server.tests.postgres import running_postgres

COMMITTED = size("PLAINSQL_TEST_CONTROL_TRANSACTIONS", 250)
CLIENTS = 12
RUNS = 5
TABLES = {"arrays": ARRAYS, "rows": ROWS}


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with running_postgres() as postgres:
        yield postgres.fresh_database()


async def direct_run(dsn: str, table: Table, isolation: str) -> Workload:
    table.make_anew(dsn)
    workload = Workload(table, [DirectTransport(dsn, isolation) for _ in range(CLIENTS)])
    await workload.run(lambda: workload.committed >= COMMITTED, limit_s=90)
    return workload


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_a_weaker_isolation_shows_anomalies(dsn: str, table: str, isolation: str) -> None:
    # So few transactions may meet none, by chance.
    for _ in range(RUNS):
        workload = await direct_run(dsn, TABLES[table], isolation)
        report = workload.check_history(f"{table} at {isolation}")
        print(report.describe(2))
        if report.anomalies:
            return
    pytest.fail(f"no anomaly in {RUNS} runs")


@pytest.mark.parametrize("table", [in_full("arrays"), "rows"])
async def test_the_engine_itself_is_serializable(dsn: str, table: str) -> None:
    workload = await direct_run(dsn, TABLES[table], "serializable")
    report = workload.check_history(f"{table} at serializable")
    assert report.anomalies == (), report.describe()
