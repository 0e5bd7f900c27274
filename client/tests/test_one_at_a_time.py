"""A transaction that two tasks or threads use at once: the second one gets an error, and the first one goes on."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import pytest

import plainsql
from plainsql import dbapi
from server.tests.processes import wait_for
from server.tests.service import Service


@pytest.fixture
def table(db: plainsql.Client) -> Iterator[str]:
    name = f"busy_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int primary key)")
    yield name
    db.query(f"drop table {name}")


@contextmanager
def waiting(service: Service, table: str, run: Callable[[str], object]) -> Iterator[None]:
    """Counts the rows in a thread. In the block, this waits for a lock; afterwards, it has ended."""
    waits = f"select count(*) from pg_locks where relation = '{table}'::regclass and not granted"
    with ThreadPoolExecutor(1) as pool:
        with service.engine() as other, service.engine() as engine, other.transaction():
            other.execute(f"lock table {table}")
            done = pool.submit(run, f"select count(*) from {table}")
            wait_for(lambda: engine.execute(waits).fetchone() == (1,) or done.done(), 60, lambda: "It does not wait.")
            yield
        done.result()


def test_a_second_thread_gets_an_error(service: Service, db: plainsql.Client, table: str) -> None:
    with db.transaction() as shared:
        shared.query(f"insert into {table} values (1)")
        with waiting(service, table, shared.query):
            with pytest.raises(plainsql.TransactionError, match="Another operation of this transaction is in progress"):
                shared.query(f"insert into {table} values (2)")
            with pytest.raises(plainsql.TransactionError, match="in progress"):
                shared.rollback()
        assert shared.query(f"select count(*) from {table}").value() == 1
    assert db.query(f"select count(*) from {table}").value() == 1


def test_a_second_thread_with_a_cursor_gets_an_error(service: Service, db: plainsql.Client, table: str) -> None:
    with dbapi.connect(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as connection:
        connection.cursor().execute(f"insert into {table} values (1)")
        with waiting(service, table, lambda sql: connection.cursor().execute(sql)):
            for second in (
                lambda: connection.cursor().execute(f"insert into {table} values (2)"),
                connection.commit,
                connection.rollback,
            ):
                with pytest.raises(dbapi.OperationalError, match="in progress"):
                    second()
        connection.commit()
    assert db.query(f"select count(*) from {table}").value() == 1


async def test_of_several_tasks_one_goes_on(service: Service, db: plainsql.Client, table: str) -> None:
    async with plainsql.connect_async(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as client:
        async with client.transaction() as shared:
            inserts = [shared.query(f"insert into {table} values ($1)", number) for number in range(4)]
            done = await asyncio.gather(*inserts, return_exceptions=True)
            assert [type(each).__name__ for each in done] == ["Result"] + ["TransactionError"] * 3
            assert (await shared.query(f"select count(*) from {table}")).value() == 1
        # Nothing is committed if a task is still at work at the end of the block.
        shared = await client.transaction().__aenter__()
        late = asyncio.create_task(shared.query(f"insert into {table} values (6)"))
        await asyncio.sleep(0)
        with pytest.raises(plainsql.TransactionError, match="in progress"):
            await shared.__aexit__(None, None, None)
        await late
    assert db.query(f"select id from {table}").value() == 0


def test_the_number_of_retries_is_sent(db: plainsql.Client, table: str) -> None:
    """The service refuses one that is too large, so it has seen it."""

    def work(mine: plainsql.Transaction) -> int:
        return mine.query(f"insert into {table} values (1)").affected_rows

    with pytest.raises(plainsql.RequestError, match="max_retries"):
        db.transaction(max_retries=101).query(f"select * from {table}")
    with pytest.raises(plainsql.RequestError, match="max_retries"):
        db.run(work, max_retries=101)
    assert db.run(work, max_retries=0) == 1
