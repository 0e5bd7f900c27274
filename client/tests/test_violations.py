"""A constraint that a concurrent commit makes a transaction violate: 40001 if the program read an older state.

PostgreSQL checks constraints against what is committed, whatever a transaction has read. Without 40001, a program that
looks first and then inserts would fail with `unique_violation`, and `run` would not call it again.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

import plainsql
from client.tests.requests_made import requests_made
from client.tests.test_sqlalchemy import address
from plainsql import dbapi
from plainsql.dbapi.connection import Rehearse
from server.tests.service import Service

_LIMIT_S = 60
_COUNT = "select count(*) from {}"
_BLOCKED = "select count(*) from pg_stat_activity where pg_backend_pid() = any(pg_blocking_pids(pid))"


class Rival:
    """Another program, whose commit comes exactly between a transaction's snapshot and its insert."""

    def __init__(self, engine: psycopg.Connection, table: str) -> None:
        self.table = table
        self._engine = engine
        self._threads = ThreadPoolExecutor(1)
        self._commit: Future[None] | None = None

    def insert(self) -> None:
        """Inserts the day 1, and commits once somebody waits for that. Once only."""
        if self._commit is None:
            self._engine.execute("begin")
            self._engine.execute(f"insert into {self.table} values (1, 'rival')".encode())
            self._commit = self._threads.submit(self._commit_later)

    def _commit_later(self) -> None:
        limit = time.monotonic() + _LIMIT_S
        while self._engine.execute(_BLOCKED).fetchall() == [(0,)]:
            assert time.monotonic() < limit
            # Within a transaction, the statistics stay as they were first read.
            self._engine.execute("select pg_stat_clear_snapshot()")
            time.sleep(0.005)
        self._engine.execute("commit")

    def close(self) -> None:
        if self._commit is not None:
            self._commit.result(_LIMIT_S)
        self._threads.shutdown()


@pytest.fixture
def rival(service: Service, db: plainsql.Client) -> Iterator[Rival]:
    table = f"days_{uuid4().hex[:8]}"
    db.query(f"create table {table} (day int primary key, author text)")
    with service.engine(db.query("select current_database()").value()) as engine:
        rival = Rival(engine, table)
        yield rival
        rival.close()
    db.query(f"drop table {table}")


def test_run_calls_a_program_again_that_looked_before_it_inserted(db: plainsql.Client, rival: Rival) -> None:
    def work(mine: plainsql.Transaction) -> int:
        day: int = mine.query(_COUNT.format(rival.table)).value() + 1
        rival.insert()
        mine.query(f"insert into {rival.table} values ($1, 'mine')", day)
        return day

    assert db.run(work) == 2


async def test_so_does_that_of_the_asyncio_client(service: Service, rival: Rival) -> None:
    async with plainsql.connect_async(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as db:

        async def work(mine: plainsql.AsyncTransaction) -> int:
            day: int = (await mine.query(_COUNT.format(rival.table))).value() + 1
            rival.insert()
            await mine.query(f"insert into {rival.table} values ($1, 'mine')", day)
            return day

        assert await db.run(work) == 2


@pytest.mark.parametrize("rehearse", ["eager", "lazy"])
def test_dbapi_reports_a_conflict_by_the_insert_or_lazily_by_the_commit(
    service: Service, rival: Rival, rehearse: Rehearse
) -> None:
    options = {"ca_file": service.dev["ca_file"]}
    with dbapi.connect(service.data_url, service.api_key, rehearse=rehearse, **options) as connection:
        cursor = connection.cursor()
        cursor.execute(_COUNT.format(rival.table))
        rival.insert()

        def insert_and_commit() -> None:
            cursor.execute(f"insert into {rival.table} values (1, 'mine')")
            connection.commit()

        with pytest.raises(dbapi.OperationalError) as caught:
            insert_and_commit()
        assert (caught.value.sqlstate, caught.value.outcome) == ("40001", "rolled_back")
        connection.rollback()


def test_sqlalchemy_reports_a_conflict(db: plainsql.Client, rival: Rival) -> None:
    engine = sa.create_engine(db.sqlalchemy_url)
    with engine.connect() as connection:
        assert connection.scalar(sa.text(_COUNT.format(rival.table))) == 0
        rival.insert()
        with pytest.raises(sa.exc.OperationalError, match="serialization_failure"):
            connection.execute(sa.text(f"insert into {rival.table} values (1, 'mine')"))
    engine.dispose()


async def test_so_does_its_asyncio_dialect(service: Service, rival: Rival) -> None:
    engine = create_async_engine("plainsql+asyncio://" + address(service, "main"))
    async with engine.connect() as connection:
        assert await connection.scalar(sa.text(_COUNT.format(rival.table))) == 0
        rival.insert()
        with pytest.raises(sa.exc.OperationalError, match="serialization_failure"):
            await connection.execute(sa.text(f"insert into {rival.table} values (1, 'mine')"))
    await engine.dispose()


def test_four_programs_at_once_each_take_a_day_of_their_own(db: plainsql.Client, rival: Rival) -> None:
    def work(mine: plainsql.Transaction) -> int:
        day: int = mine.query(f"select coalesce(max(day), 0) + 1 from {rival.table}").value()
        mine.query(f"insert into {rival.table} values ($1, 'mine')", day)
        return day

    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: db.run(work, max_attempts=100), range(8)))
    assert sorted(taken) == list(range(1, 9))


def test_an_error_that_no_other_program_caused_is_the_constraints_own(db: plainsql.Client, rival: Rival) -> None:
    db.query(f"insert into {rival.table} values (1, 'earlier')")

    def count_and_insert(mine: plainsql.Transaction) -> None:
        mine.query(_COUNT.format(rival.table))
        mine.query(f"insert into {rival.table} values (1, 'mine')")

    def insert_alone(mine: plainsql.Transaction) -> None:
        mine.query(f"insert into {rival.table} values (3, 'mine')")
        mine.query(f"insert into {rival.table} values (1, 'mine')")

    programs: list[tuple[Callable[[plainsql.Transaction], None], int]] = [(count_and_insert, 3), (insert_alone, 2)]
    for program, requests in programs:
        with requests_made() as made, pytest.raises(plainsql.StatementError) as caught:
            db.run(program)
        # The reads are compared once more, if there are any.
        assert (caught.value.code, len(made)) == ("unique_violation", requests)


def test_a_deferred_constraint_is_checked_against_what_was_read_as_well(
    service: Service, db: plainsql.Client, rival: Rival
) -> None:
    children = f"{rival.table}_children"
    db.query(f"insert into {rival.table} values (7, 'parent')")
    db.query(f"create table {children} (day int references {rival.table} deferrable initially deferred)")
    with ExitStack() as at_end:
        at_end.callback(db.query, f"drop table {children}")
        attempts = 0

        def work(mine: plainsql.Transaction) -> str:
            nonlocal attempts
            attempts += 1
            if not mine.query(f"select author from {rival.table} where day = 7").rows:
                return "no parent"
            mine.query(f"insert into {children} values (7)")
            db.query(f"delete from {rival.table} where day = 7")
            return "inserted"

        assert (db.run(work), attempts) == ("no parent", 2)
