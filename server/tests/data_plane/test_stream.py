"""The deadline of a stream: one for waiting and running, from when its request came, and another for sending."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import pytest

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.core.result import NO_COLUMNS, Completion, Result, Shape
from plainsql_server.data_plane.databases import Databases, Place
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.query import Queries
from plainsql_server.data_plane.stream import Streams
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.pools import Pools

pytestmark = pytest.mark.unit

PRINCIPAL = Principal("org_1", "key_1", "free", frozenset([Scope.WRITE]))
PLACE = Place("db_1", False, Address("host=cell", "db_1", "owner"))


class OnePlace:
    """Knows one database, and notes until when it may be waited for."""

    def __init__(self) -> None:
        self.until: list[float] = []

    async def find(self, _: Principal, name: str | None, deadline: Deadline | None = None) -> Place:
        assert name is None
        assert deadline is not None
        self.until.append(deadline.at_s)
        return PLACE


class NoPool:
    """Notes until when slots and connections may be waited for, and has no connection."""

    def __init__(self) -> None:
        self.until: list[float] = []
        self.retry_lane = asyncio.Lock()

    def for_address(self, *_: object) -> "NoPool":
        return self

    @asynccontextmanager
    async def stream_slot(self, _: int, deadline: Deadline) -> AsyncIterator[None]:
        self.until.append(deadline.at_s)
        yield

    def lease(self, _: int, deadline: Deadline) -> AbstractAsyncContextManager[Any]:
        self.until.append(deadline.at_s)
        raise LimitError("overloaded", "There is no connection.")


class OneResult:
    """Has run the statement."""

    async def run(self, *_: object) -> Result:
        return Result(NO_COLUMNS, [b"{}"], False, Completion("INSERT", 1, 1), 0)


class DoesNotRead:
    """A receiver whose client does not read."""

    async def begin(self, shape: Shape, queue_us: int, *, is_buffered: bool) -> None:  # noqa: ARG002  # a receiver's
        return

    async def take(self, rows: Sequence[bytes]) -> None:  # noqa: ARG002  # likewise
        await asyncio.Event().wait()


def job_that_came(ago_s: float, timeout_ms: int) -> StatementJob:
    job = StatementJob("insert into t values (1) returning n", timeout_ms=timeout_ms)
    job.began_s -= ago_s
    return job


async def test_everything_before_the_first_row_ends_at_one_deadline() -> None:
    databases, pool = OnePlace(), NoPool()
    queries = Queries(cast(Databases, databases), cast(Pools, pool), cast(Tally, object()))
    streams = Streams(cast(Databases, databases), cast(Pools, pool), queries, cast(Tally, object()))
    job = job_that_came(1.0, 5_000)
    with pytest.raises(LimitError):
        await streams.run(PRINCIPAL, job, DoesNotRead())
    ends_s = job.began_s + 5.0
    # The database twice: for the stream, and for the query that it is. Then the stream's slot, and the connection.
    assert databases.until == [ends_s, ends_s]
    assert pool.until == [ends_s, ends_s]


class Reads:
    """A receiver that reads, but not in the same moment."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    async def begin(self, shape: Shape, queue_us: int, *, is_buffered: bool) -> None:  # noqa: ARG002  # a receiver's
        await asyncio.sleep(0)

    async def take(self, rows: Sequence[bytes]) -> None:
        await asyncio.sleep(0)
        self.rows += rows


async def test_a_committed_statement_that_took_long_does_not_lose_its_rows() -> None:
    places = cast(Databases, OnePlace())
    streams = Streams(places, cast(Pools, NoPool()), cast(Queries, OneResult()), cast(Tally, object()))
    reader = Reads()
    # So long ago that nothing is left of its own time.
    await streams.run(PRINCIPAL, job_that_came(1e6, 10_000_000), reader)
    assert reader.rows
