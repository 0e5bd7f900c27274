"""Writes through a proxy that cuts connections at random: each is executed exactly once and reported correctly.

PLAINSQL_TEST_CUT_WRITES says how many; 10,000 take some minutes.
"""

import asyncio
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import plainsql
from client.tests.cutting_proxy import cutting_proxy
from server.tests.service import Service

pytestmark = pytest.mark.chaos

WRITES = int(os.environ.get("PLAINSQL_TEST_CUT_WRITES", "300"))
THREADS = 4


@pytest.mark.timeout(max(240, WRITES // 10))
def test_every_write_is_done_exactly_once_whatever_is_cut(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    plain_service.query("create table effects (writer int, number int)")
    with cutting_proxy(port, share=0.3, seed=9) as proxy:

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


async def test_the_asyncio_client_writes_exactly_once_too(plain_service: Service) -> None:
    port = urlsplit(plain_service.data_url).port
    assert port is not None
    plain_service.query("create table async_effects (number int)")
    with cutting_proxy(port, share=0.3, seed=9) as proxy:
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
        cutting_proxy(port, share=1.0, seed=9) as proxy,
        plainsql.connect(f"http://127.0.0.1:{proxy.port}", plain_service.api_key, timeout_s=0.3) as db,
        pytest.raises(plainsql.NetworkError) as caught,
    ):
        db.query("create table if not exists elsewhere (id int)")
    assert caught.value.outcome == "unknown"
    assert caught.value.idempotency_key is not None
