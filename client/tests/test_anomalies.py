"""What interactive transactions prevent, anomaly by anomaly, with the program's own code between the statements.

And `run`, which calls a program again until it does not conflict.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import uuid4

import pytest

import plainsql
from client.tests.requests_made import requests_made
from server.tests.service import Service


@pytest.fixture
def accounts(db: plainsql.Client) -> Iterator[str]:
    """A table with the accounts 1 and 2, of 100 each."""
    name = f"accounts_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int primary key, balance int not null)")
    db.query(f"insert into {name} values (1, 100), (2, 100)")
    yield name
    db.query(f"drop table {name}")


def assert_conflict(work: Callable[[], object]) -> None:
    with pytest.raises(plainsql.StatementError) as caught:
        work()
    assert (caught.value.sqlstate, caught.value.retryable, caught.value.outcome) == ("40001", True, "rolled_back")


def balances(db: plainsql.Client, table: str) -> list[int]:
    return [row.balance for row in db.query(f"select balance from {table} order by id")]


def test_no_update_is_lost(db: plainsql.Client, accounts: str) -> None:
    def work() -> None:
        with db.transaction() as mine:
            seen = mine.query(f"select balance from {accounts} where id = 1").value()
            db.query(f"update {accounts} set balance = balance + 50 where id = 1")
            mine.query(f"update {accounts} set balance = $1 where id = 1", seen + 10)

    assert_conflict(work)
    assert balances(db, accounts) == [150, 100]


def test_a_with_part_does_not_hide_the_table_of_the_same_name(db: plainsql.Client, accounts: str) -> None:
    def work() -> None:
        with db.transaction() as mine:
            mine.query(f"with {accounts} as (select balance from {accounts} where id = 1) select * from {accounts}")
            db.query(f"update {accounts} set balance = 0 where id = 1")
            mine.query(f"update {accounts} set balance = 50 where id = 2")

    assert_conflict(work)
    assert balances(db, accounts) == [0, 100]


def test_a_function_that_writes_runs_as_often_as_it_was_called(db: plainsql.Client, accounts: str) -> None:
    credit = f"{accounts}_credit"
    db.query(
        f"create function {credit}() returns int language sql as "
        f"'update {accounts} set balance = balance + 1 where id = 1; select 1'"
    )
    try:
        with db.transaction() as mine:
            mine.query(f"update {accounts} set balance = 0 where id = 2")
            for _ in range(3):
                mine.query(f"select {credit}()")
        assert balances(db, accounts) == [103, 0]
    finally:
        db.query(f"drop function {credit}")


def test_a_setting_lasts_for_the_transaction(db: plainsql.Client) -> None:
    with db.transaction() as mine:
        mine.query("select set_config('app.tenant', '7', true)")
        assert mine.query("select current_setting('app.tenant')").value() == "7"


def test_numbers_of_a_sequence_differ_and_leave_the_key_for_the_commit(db: plainsql.Client, accounts: str) -> None:
    db.query(f"create sequence {accounts}_s")
    with db.transaction(idempotency_key=uuid4().hex) as mine:
        first, second = (mine.query(f"select nextval('{accounts}_s')").value() for _ in range(2))
        mine.query(f"insert into {accounts} values ($1, 0), ($2, 0)", first + 10, second + 10)
    assert (first, second, len(balances(db, accounts))) == (1, 2, 4)
    db.query(f"drop sequence {accounts}_s")


def test_a_transaction_that_has_ended_runs_nothing(db: plainsql.Client, accounts: str) -> None:
    with db.transaction() as mine:
        mine.query(f"select * from {accounts}")
    with pytest.raises(ValueError, match="has ended"):
        mine.query(f"insert into {accounts} values (3, 0)")


async def test_a_statement_that_was_cancelled_fails_the_transaction_at_once(service: Service, accounts: str) -> None:
    async with plainsql.connect_async(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as db:
        mine = db.transaction()
        await mine.query(f"insert into {accounts} values (3, 0)")
        try:
            async with asyncio.timeout(0.2):
                await mine.query("select pg_sleep(10)")
        except TimeoutError:
            with pytest.raises(plainsql.TransactionError):
                await mine.query(f"select * from {accounts}")
            mine.rollback()
        assert len((await mine.query(f"select * from {accounts}")).rows) == 2


def test_no_write_skew(db: plainsql.Client, accounts: str) -> None:
    def work() -> None:
        with db.transaction() as mine, db.transaction() as theirs:
            for each, number in ((mine, 1), (theirs, 2)):
                if each.query(f"select sum(balance) from {accounts}").value() >= 200:
                    each.query(f"update {accounts} set balance = 0 where id = $1", number)

    # The inner block commits first.
    assert_conflict(work)
    assert balances(db, accounts) == [100, 0]


def test_no_phantom(db: plainsql.Client, accounts: str) -> None:
    def work() -> None:
        with db.transaction() as mine:
            if not mine.query(f"select id from {accounts} where balance > 500").rows:
                db.query(f"insert into {accounts} values (3, 1000)")
                mine.query(f"insert into {accounts} values (4, 0)")

    assert_conflict(work)
    assert balances(db, accounts) == [100, 100, 1000]


def test_no_read_only_anomaly_once_the_reader_writes_down_what_it_saw(db: plainsql.Client, accounts: str) -> None:
    """Fekete, O'Neil and O'Neil's: a report between a deposit and a withdrawal with a fee that overlap."""
    db.query(f"update {accounts} set balance = 0")

    def withdraw() -> None:
        with db.transaction() as withdrawal:
            total = withdrawal.query(f"select sum(balance) from {accounts}").value()
            db.query(f"update {accounts} set balance = 20 where id = 2")
            with db.transaction() as report:
                seen = report.query(f"select balance from {accounts} order by id").rows
                report.query(f"insert into {accounts} values (9, $1)", sum(row.balance for row in seen))
            fee = 1 if total - 10 < 0 else 0
            withdrawal.query(f"update {accounts} set balance = balance - $1 where id = 1", 10 + fee)

    assert_conflict(withdraw)
    assert balances(db, accounts) == [0, 20, 20]


def test_reads_after_a_write_see_one_state(db: plainsql.Client, accounts: str) -> None:
    def work() -> None:
        with db.transaction() as mine:
            mine.query(f"insert into {accounts} values (3, 0)")
            mine.query(f"select balance from {accounts} where id = 1")
            db.query(f"update {accounts} set balance = 0")
            mine.query(f"select balance from {accounts} where id = 2")
            pytest.fail("The second read saw another state than the first.")

    assert_conflict(work)


def test_an_unrelated_change_is_no_conflict(db: plainsql.Client, accounts: str) -> None:
    with db.transaction() as mine:
        assert mine.query(f"select balance from {accounts} where id = 1").value() == 100
        mine.query(f"update {accounts} set balance = 5 where id = 1")
        db.query(f"update {accounts} set balance = 7 where id = 2")
    assert balances(db, accounts) == [5, 7]


def test_a_block_that_raises_commits_nothing(db: plainsql.Client, accounts: str) -> None:
    def work() -> None:
        with db.transaction() as mine:
            assert mine.query(f"delete from {accounts} returning id").affected_rows == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with db.transaction() as mine:
        mine.query(f"delete from {accounts}")
        mine.rollback()
    assert balances(db, accounts) == [100, 100]


def test_statements_are_either_added_or_queried(db: plainsql.Client, accounts: str) -> None:
    with db.transaction() as mine:
        mine.add(f"update {accounts} set balance = 1")
        with pytest.raises(ValueError, match=r"add\(\) or query\(\)"):
            mine.query("select 1")
    with db.transaction() as mine:
        mine.query("select 1")
        with pytest.raises(ValueError, match=r"add\(\) or query\(\)"):
            mine.add(f"delete from {accounts}")
    assert balances(db, accounts) == [1, 1]


def test_run_returns_what_the_program_returns_and_tries_again_after_a_conflict(
    db: plainsql.Client, accounts: str
) -> None:
    attempts = []

    def withdraw(mine: plainsql.Transaction) -> int:
        balance: int = mine.query(f"select balance from {accounts} where id = 1").value()
        attempts.append(balance)
        if len(attempts) < 3:
            db.query(f"update {accounts} set balance = balance + 1 where id = 1")
        mine.query(f"update {accounts} set balance = $1 where id = 1", balance - 50)
        return balance - 50

    assert db.run(withdraw) == 52
    assert (attempts, balances(db, accounts)) == ([100, 101, 102], [52, 100])


def test_run_gives_up_after_its_attempts_and_repeats_nothing_else(db: plainsql.Client, accounts: str) -> None:
    attempts = []

    def hopeless(mine: plainsql.Transaction) -> None:
        attempts.append(mine.query(f"select balance from {accounts} where id = 1").value())
        db.query(f"update {accounts} set balance = balance + 1 where id = 1")
        mine.query(f"update {accounts} set balance = 0 where id = 2")

    assert_conflict(lambda: db.run(hopeless, max_attempts=3))
    assert attempts == [100, 101, 102]

    def wrong(mine: plainsql.Transaction) -> None:
        attempts.append(0)
        mine.query("select * from nowhere")

    with pytest.raises(plainsql.StatementError, match="nowhere"):
        db.run(wrong)
    assert len(attempts) == 4


def test_programs_that_compete_lose_nothing(db: plainsql.Client, accounts: str) -> None:
    """Four threads move money with code in between; the total stays, and every move counts."""
    started = threading.Barrier(4)

    def move(mine: plainsql.Transaction) -> None:
        first, second = mine.query(f"select balance from {accounts} order by id").rows
        mine.query(f"update {accounts} set balance = $1 where id = 1", first.balance - 1)
        assert mine.query(f"select sum(balance) from {accounts}").value() == first.balance + second.balance - 1
        mine.query(f"update {accounts} set balance = $1 where id = 2", second.balance + 1)

    def moves(_: int) -> None:
        started.wait()
        for _ in range(5):
            db.run(move, max_attempts=200)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(moves, range(4)))
    assert balances(db, accounts) == [80, 120]


def test_asyncio_has_the_same_transactions(service: Service, db: plainsql.Client, accounts: str) -> None:
    async def main() -> int:
        settings = {"ca_file": service.dev["ca_file"]}
        async with plainsql.connect_async(service.data_url, service.api_key, **settings) as client:
            async with client.transaction() as mine:
                row = (await mine.query(f"insert into {accounts} values (3, 30) returning balance")).one()
                assert (await mine.query(f"select sum(balance) from {accounts}")).value() == 200 + row.balance
            with suppress(ZeroDivisionError):
                async with client.transaction() as mine:
                    await mine.query(f"delete from {accounts}")
                    raise ZeroDivisionError
            attempts = 0

            async def work(mine: plainsql.AsyncTransaction) -> int:
                nonlocal attempts
                attempts += 1
                balance: int = (await mine.query(f"select balance from {accounts} where id = 1")).value()
                if attempts == 1:
                    await client.query(f"update {accounts} set balance = 500 where id = 1")
                await mine.query(f"update {accounts} set balance = $1 where id = 1", balance + 1)
                return attempts

            return await client.run(work)

    assert asyncio.run(main()) == 2
    assert balances(db, accounts) == [501, 100, 30]


def test_a_unit_costs_what_the_guide_says(db: plainsql.Client, accounts: str) -> None:
    with requests_made() as requests:
        with db.transaction() as mine:
            mine.query(f"select * from {accounts}")
        assert len(requests) == 1
        with db.transaction() as mine:
            mine.query(f"select balance from {accounts} where id = 1 for update")
            mine.query(f"update {accounts} set balance = 0 where id = 1")
        assert len(requests) == 4
