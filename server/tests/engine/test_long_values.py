"""Digests of long rows, which are hashed where libpq keeps them: the same as those of copies."""

import psycopg
import pytest
from psycopg.pq.abc import PGresult

from plainsql_server.core.result import Digests
from plainsql_server.engine.encoding.digests import RowHasher, digest_key
from plainsql_server.engine.encoding.transaction_times import TransactionTimes
from server.tests.postgres import Postgres

NOW = b"2026-11-17T09:46:06.123456Z"
WRITTEN_NOW = "2026-11-17 09:46:06.123456"
# With times at the ends of slices and of values, and with nulls and empty values in all places.
ROWS = f"""select * from (values
    (repeat('a', 3000), null, '', '{WRITTEN_NOW}'),
    (repeat('a', 1010) || '{WRITTEN_NOW}', '{WRITTEN_NOW}', null, null),
    (repeat('{WRITTEN_NOW} ', 5000), '', '', ''),
    (null, repeat('ä', 100000), repeat('1', 1024), repeat('1', 1025)),
    (null, null, null, null),
    ('', '', '', '')) as given(a, b, c, d)"""


@pytest.fixture
def result(postgres: Postgres) -> PGresult:
    with psycopg.connect(postgres.dsn()) as connection:
        read = connection.execute(ROWS.encode()).pgresult
    assert read is not None
    return read


async def digests(result: PGresult, *, is_long: bool, now: bytes = NOW) -> Digests:
    columns = [(f"c{at}", "text") for at in range(result.nfields)]
    hasher = RowHasher(columns, TransactionTimes(now), digest_key("a secret"))
    assert await hasher.update(result, 1 << 40, is_long=is_long)
    return hasher.finish("SELECT", 0)


async def test_long_rows_have_the_digests_of_their_copies(result: PGresult) -> None:
    assert await digests(result, is_long=True) == await digests(result, is_long=False)


async def test_times_in_long_rows_are_hidden(result: PGresult) -> None:
    another = NOW.replace(b"06.1", b"07.1")
    assert await digests(result, is_long=True) != await digests(result, is_long=True, now=another)


async def test_hashing_long_rows_ends_at_the_limit(result: PGresult) -> None:
    hasher = RowHasher([(name, "text") for name in "abcd"], TransactionTimes(NOW), digest_key("a secret"))
    assert not await hasher.update(result, 1000, is_long=True)
    assert hasher.size_bytes < 10_000
