"""The rows that rehearsals write and take back: they are counted, vacuumed, and their space is used again.

There is no charge for storage: usage has requests, rows, time and bytes sent. So what matters is that the space does
not grow for ever.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from server.tests.processes import wait_for
from server.tests.tenant_isolation.cells import Hostile, hostile_cell

ROWS = 2_000
# Rehearsals of every kind of write: the rows of each are dead when it ends.
WRITES = [
    f"insert into written select g, repeat('x', 200) from generate_series(1001, {1000 + ROWS}) g",
    "update written set v = repeat('y', 200)",
    "delete from written",
]


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with hostile_cell(15) as running:
        for sql in (
            "create table written (id int primary key, v text)",
            "insert into written select g, repeat('x', 200) from generate_series(1, 1000) g",
            "vacuum analyze written",
        ):
            assert query(running, sql)["success"]
        yield running


def query(hostile: Hostile, sql: str) -> dict[str, Any]:
    with hostile.client() as client:
        answer: dict[str, Any] = client.post("/v1/query", json={"sql": sql}).json()
        return answer


def rehearse(hostile: Hostile) -> None:
    with hostile.client() as client:
        for sql in WRITES:
            statement = {"sql": sql, "digest": True, "freeze": True, "rows": False}
            answer = client.post("/v1/transaction", json={"statements": [statement], "dry_run": True}).json()
            assert answer["success"], answer
            assert answer["results"][0]["affected_rows"] >= 1000


def counted(hostile: Hostile, columns: str) -> tuple[Any, ...]:
    with hostile.postgres.connect(database=hostile.own.database) as admin:
        found = admin.execute(
            f"select {columns} from pg_stat_user_tables where relname = 'written'".encode()
        ).fetchone()
        assert found is not None
        return found


def size_bytes(hostile: Hostile) -> int:
    with hostile.postgres.connect(database=hostile.own.database) as admin:
        (found,) = admin.execute("select pg_total_relation_size('written')").fetchone() or (0,)
        return int(found)


def await_dead(hostile: Hostile) -> None:
    """Waits until the dead rows of one round are counted: of the insert, and the new versions of the update."""
    dead = ROWS + 1000
    wait_for(lambda: counted(hostile, "n_dead_tup")[0] >= dead, 30.0, lambda: f"{counted(hostile, 'n_dead_tup')}")


def test_dead_rows_are_counted_and_a_vacuum_gives_their_space_back(hostile: Hostile) -> None:
    before = size_bytes(hostile)
    rehearse(hostile)
    await_dead(hostile)
    grown = size_bytes(hostile)
    assert grown > before
    assert query(hostile, "vacuum written")["success"]
    wait_for(lambda: counted(hostile, "n_dead_tup") == (0,), 30.0, lambda: f"{counted(hostile, 'n_dead_tup')}")
    # Pages at the end of the table are given back to the disk. Its index keeps its pages, and uses them again.
    assert size_bytes(hostile) < grown
    assert query(hostile, "select count(*) as n from written")["rows"] == [{"n": 1000}]


def test_the_space_does_not_grow_with_the_number_of_rehearsals(hostile: Hostile) -> None:
    sizes = []
    for _ in range(6):
        rehearse(hostile)
        assert query(hostile, "vacuum written")["success"]
        sizes.append(size_bytes(hostile))
    # What it has after the first rounds is enough for all.
    assert max(sizes[2:]) <= max(sizes[:2]), sizes


def test_autovacuum_finds_them_with_the_cells_own_thresholds(hostile: Hostile) -> None:
    with hostile.postgres.connect() as admin:
        # Only how often it looks is changed: a cell's five minutes are too long for a test.
        admin.execute("alter system set autovacuum_naptime = '1s'")
        admin.execute("select pg_reload_conf()")
        try:
            rehearse(hostile)
            vacuums = counted(hostile, "autovacuum_count")[0]
            wait_for(
                lambda: counted(hostile, "autovacuum_count")[0] > vacuums and counted(hostile, "n_dead_tup") == (0,),
                90.0,
                lambda: f"{counted(hostile, 'autovacuum_count, n_dead_tup')}",
            )
        finally:
            admin.execute("alter system reset autovacuum_naptime")
            admin.execute("select pg_reload_conf()")
