"""Long results are read on a thread: whole, with their notices, and whatever happens to the connection meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from psycopg.pq import ConnStatus

from plainsql_server.core.errors import EngineError
from plainsql_server.engine.connection import connection as module
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import drain, run_command
from plainsql_server.engine.connection.long_reading import read_on
from plainsql_server.engine.connection.valve import ResultTooLarge
from server.tests.postgres import Postgres

LONG_BYTES = 5_000_000
LIMIT_BYTES = 64_000_000
SQL = b"select repeat('1', %d)" % LONG_BYTES
NOTICES = b"""create function pg_temp.noted(i int) returns text language plpgsql as $$
    begin raise notice 'row %', i; return repeat('x', 3000000); end $$"""


@pytest.fixture
async def connection(postgres: Postgres) -> AsyncIterator[Connection]:
    opened = await Connection.open(postgres.dsn().encode(), 30)
    opened.max_result_bytes = LIMIT_BYTES
    yield opened
    opened.close()


class HeldReads:
    """Reads on the thread that wait until they are let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go = threading.Event()
        self.threads: set[int] = set()

    def __call__(self, *arguments: Any) -> bool:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.may_go.wait(30)
        return read_on(*arguments)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldReads]:
    reads = HeldReads()
    monkeypatch.setattr(module, "read_on", reads)
    yield reads
    reads.may_go.set()


def send(connection: Connection, sql: bytes = SQL) -> None:
    connection.send_query(sql, 32)
    connection.sync()


async def begin(connection: Connection, held: HeldReads) -> "asyncio.Task[Any]":
    """A task that waits for a result which the thread is about to read."""
    send(connection)
    fetching = asyncio.create_task(connection.fetch())
    assert await asyncio.to_thread(held.begun.wait, 30)
    return fetching


async def test_a_long_result_is_whole_and_read_on_another_thread(connection: Connection, held: HeldReads) -> None:
    held.may_go.set()
    send(connection)
    result = await connection.fetch()
    assert result is not None
    assert result.get_value(0, 0) == b"1" * LONG_BYTES
    assert held.threads - {threading.get_ident()} == held.threads != set()
    assert connection.taken_bytes > LONG_BYTES / 2
    assert connection.is_grown
    await drain(connection)
    await run_command(connection, b"select 1")


async def test_a_short_result_is_read_on_the_loop(connection: Connection, held: HeldReads) -> None:
    send(connection, b"select repeat('1', 100000)")
    result = await connection.fetch()
    assert result is not None
    assert result.get_value(0, 0) == b"1" * 100_000
    await drain(connection)
    assert not held.threads
    assert not connection.is_grown


async def test_notices_come_with_it(connection: Connection) -> None:
    await run_command(connection, NOTICES)
    send(connection, b"select pg_temp.noted(g) from generate_series(1, 4) g")
    await drain(connection)
    notices = connection.take_notices()
    assert notices is not None
    assert [each.message for each in notices.shown] == [f"row {number}" for number in range(1, 5)]


async def test_the_next_reader_waits_for_the_thread_of_one_that_was_cancelled(
    connection: Connection, held: HeldReads
) -> None:
    fetching = await begin(connection, held)
    fetching.cancel()
    await asyncio.wait([fetching])
    draining = asyncio.create_task(drain(connection))
    await asyncio.sleep(0.05)
    assert not draining.done()
    held.may_go.set()
    await draining
    assert connection.is_idle
    await run_command(connection, b"select 1")


async def test_closing_waits_for_the_thread(connection: Connection, held: HeldReads) -> None:
    fetching = await begin(connection, held)
    pgconn = connection.pgconn
    connection.close()
    assert not connection.is_open
    with pytest.raises(EngineError):
        await fetching
    connection.close()
    # libpq's memory is freed only when the thread no longer uses it.
    assert pgconn.status == ConnStatus.OK
    held.may_go.set()
    async with asyncio.timeout(30):
        while pgconn.status == ConnStatus.OK:  # noqa: ASYNC110  # a thread is awaited
            await asyncio.sleep(0.01)


async def test_what_fails_on_the_thread_reaches_the_reader(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise OSError

    monkeypatch.setattr(module, "read_on", broken)
    send(connection)
    with pytest.raises(EngineError):
        await connection.fetch()
    assert not connection.is_open


async def test_a_result_that_is_too_large_ends_the_connection(connection: Connection) -> None:
    connection.max_result_bytes = 2_000_000
    send(connection)
    with pytest.raises(ResultTooLarge):
        await connection.fetch()
    assert not connection.is_open


async def test_a_server_that_hangs_up_in_the_middle_is_noticed(
    connection: Connection, held: HeldReads, postgres: Postgres
) -> None:
    fetching = await begin(connection, held)
    with postgres.connect() as admin:
        admin.execute("select pg_terminate_backend(%s)", (connection.backend_pid,))
    held.may_go.set()
    # The value may have been sent as a whole before. Then its end is missing.
    await asyncio.wait([fetching])
    with pytest.raises(EngineError):
        await (drain(connection) if fetching.exception() is None else fetching)
