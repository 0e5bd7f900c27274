"""Writes through a proxy that cuts connections at random: each is executed exactly once and reported correctly.

So is each interactive transaction, with its commit cut at every byte of the request and the answer.
PLAINSQL_TEST_CUT_WRITES says how many writes; 10,000 take some minutes. With PLAINSQL_TEST_CUT_UNITS=3400 transactions,
every byte is a place of a cut.
"""

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import plainsql
from client.tests.cutting_proxy import CommitCutter, CuttingProxy, running
from server.tests.load import size
from server.tests.service import Service

pytestmark = pytest.mark.chaos

WRITES = size("PLAINSQL_TEST_CUT_WRITES", 300)
THREADS = 4
UNITS = size("PLAINSQL_TEST_CUT_UNITS", 80)
COUNTERS = 8


@pytest.mark.timeout(max(240, WRITES // 10))
def test_every_write_is_done_exactly_once_whatever_is_cut(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    plain_service.query("create table effects (writer int, number int)")
    with running(CuttingProxy(port, share=0.3, seed=9)) as proxy:

        def write(number: int) -> str:
            try:
                return _write_one(db, number)
            except plainsql.NetworkError as error:
                return error.outcome or "unknown"

        url = f"http://127.0.0.1:{proxy.port}"
        with plainsql.connect(url, plain_service.api_key) as db, ThreadPoolExecutor(THREADS) as threads:
            outcomes = list(threads.map(write, range(WRITES)))
        assert min(proxy.cuts.values()) > WRITES // 50
        print(f"{WRITES} writes, cuts: {dict(proxy.cuts)}, outcomes: {dict(Counter(outcomes))}")
    counted = {row["number"]: row["count"] for row in plain_service.query(
        "select number, count(*) from effects group by number", max_rows=100_000)["rows"]}  # fmt: skip
    assert all(count == 1 for count in counted.values())
    # Every write is reported as done, and is: the client retries until it is.
    assert set(outcomes) == {"committed"}
    assert set(counted) == set(range(WRITES))


def _write_one(db: plainsql.Client, number: int) -> str:
    """Every kind of write in turn: a statement, a transaction, a function behind a SELECT."""
    if number % 3 == 0:
        assert db.query("insert into effects values ($1, $2)", 0, number).affected_rows == 1
    elif number % 3 == 1:
        with db.transaction() as together:
            pending = together.add("insert into effects values (1, $1) returning number", number)
        assert pending.result.value() == number
    else:
        wrote = db.query(
            "with new as (insert into effects values (2, $1) returning 1) select count(*) from new", number
        )
        assert wrote.value() == 1
    return "committed"


@pytest.mark.timeout(max(240, UNITS // 5))
def test_an_interactive_transaction_has_one_effect_wherever_its_commit_is_cut(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    plain_service.query("create table units (number int, counter int, seen int)")
    plain_service.query("create table counters (id int primary key, n int not null)")
    plain_service.query(f"insert into counters select id, 0 from generate_series(0, {COUNTERS - 1}) id")
    with (
        running(CommitCutter(port)) as proxy,
        plainsql.connect(f"http://127.0.0.1:{proxy.port}", plain_service.api_key) as db,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        _count_one(db, 0)
        proxy.places.extend(_places(sum(proxy.lengths)))
        reported = list(threads.map(lambda number: _count_one(db, number), range(1, UNITS + 1)))
    print(f"{UNITS} units, commits of {proxy.lengths} bytes, cuts: {dict(proxy.cuts)}, {dict(Counter(reported))}")
    assert sum(proxy.cuts.values()) == UNITS
    # Every unit is reported as committed, and is, once: each saw what the one before it had written.
    assert set(reported) == {"committed"}
    rows = plain_service.query("select number, counter, seen from units", max_rows=100_000)["rows"]
    assert sorted(row["number"] for row in rows) == list(range(UNITS + 1))
    for counter in range(COUNTERS):
        seen = sorted(row["seen"] for row in rows if row["counter"] == counter)
        assert seen == list(range(len(seen)))
    assert plain_service.value("select sum(n)::int from counters") == UNITS + 1
    plain_service.query("drop table units, counters")


def _places(length: int) -> list[int | None]:
    """Places all over an exchange of that length, and as a quarter of them the one where the service begins to work."""
    quarter = UNITS // 4
    # Numbers get longer, and requests with them.
    return [number * (length + 50) // (UNITS - quarter) for number in range(UNITS - quarter)] + [None] * quarter


def _count_one(db: plainsql.Client, number: int) -> str:
    """A unit that reads a counter, and stores what it read and the next number. Returns the reported outcome."""

    def count(unit: plainsql.Transaction) -> None:
        seen: int = unit.query("select n from counters where id = $1", number % COUNTERS).value()
        unit.query("insert into units values ($1, $2, $3)", number, number % COUNTERS, seen)
        unit.query("update counters set n = $2 where id = $1", number % COUNTERS, seen + 1)

    try:
        db.run(count, max_attempts=50)
    except plainsql.Error as error:
        return str(error.outcome)
    return "committed"


def test_a_commit_whose_answers_are_all_lost_is_reported_as_it_is(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    plain_service.query("create table unanswered (number int)")

    def work(db: plainsql.Client) -> None:
        with db.transaction(timeout_s=3) as unit:
            count: int = unit.query("select count(*) from unanswered").value()
            unit.query("insert into unanswered values ($1)", count)

    with (
        running(CommitCutter(port, is_relentless=True)) as proxy,
        plainsql.connect(f"http://127.0.0.1:{proxy.port}", plain_service.api_key) as db,
    ):
        with pytest.raises(plainsql.NetworkError) as caught:
            work(db)
        assert caught.value.outcome in ("committed", "unknown")
        assert caught.value.idempotency_key is not None
        while (outcome := db.request_outcome(caught.value.idempotency_key)) == "in_progress":
            time.sleep(0.05)
    assert caught.value.outcome == "unknown" or outcome == "committed"
    assert plain_service.value("select count(*) from unanswered") == (1 if outcome == "committed" else 0)
    plain_service.query("drop table unanswered")


async def test_the_asyncio_client_writes_exactly_once_too(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    plain_service.query("create table async_effects (number int)")
    with running(CuttingProxy(port, share=0.3, seed=9)) as proxy:
        async with plainsql.connect_async(f"http://127.0.0.1:{proxy.port}", plain_service.api_key) as db:
            work = [db.query("insert into async_effects values ($1)", number) for number in range(60)]
            assert {result.affected_rows for result in await asyncio.gather(*work)} == {1}
        assert sum(proxy.cuts.values()) > 5
    assert plain_service.value("select count(*) from async_effects") == 60
    assert plain_service.value("select count(distinct number) from async_effects") == 60


def test_an_unavailable_service_is_reported_as_such() -> None:
    with (
        plainsql.connect("http://127.0.0.1:1", "svc_k_none", timeout_s=0.2) as db,
        pytest.raises(plainsql.NetworkError, match="Can't connect to") as caught,
    ):
        db.query("insert into effects values (0, 0)")
    assert caught.value.outcome == "not_executed"


def test_a_write_whose_answers_are_all_lost_has_an_unknown_outcome(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    with (
        running(CuttingProxy(port, share=1.0, seed=9)) as proxy,
        plainsql.connect(f"http://127.0.0.1:{proxy.port}", plain_service.api_key, timeout_s=0.3) as db,
        pytest.raises(plainsql.NetworkError) as caught,
    ):
        db.query("create table if not exists elsewhere (id int)")
    assert caught.value.outcome == "unknown"
    assert caught.value.idempotency_key is not None
