"""Counts requests in the directory, for services without Redis: the table `permits`.

    async with PermitCounts.open(dsn) as counts:
        answers = await counts.grant(asks)    # (granted, left, slot, back_ms) for each

The function `grant_permits` of migration 0018 does what the script of `limits/shared.py` does in Redis, by the
directory's clock. It uses a connection of its own, which doesn't wait for commits to reach the disk: if the directory
crashes, or a standby takes over, it has forgotten what was granted in the last fraction of a second.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, Self

import psycopg

from plainsql_server.core.sockets import cut_if_silent
from plainsql_server.directory.connection import Directory, DirectoryConnection, as_service_error, open_alone

APPLICATION_NAME = "plainsql-permits"
# Between two statements of a process. Requests that come meanwhile are counted by one statement.
_INTERVAL_S = 0.005
# How long a request may wait before its process uses its share. A statement takes less than a millisecond.
_TIMEOUT_S = 1.0
# Then the directory gives up by itself. It does not notice before that a connection was cut.
_STATEMENT_TIMEOUT_MS = 900
_GRANT = f"SELECT * FROM grant_permits({', '.join(['%s'] * 8)})"


class PermitAsk(Protocol):
    """What is asked for an organization: `limits/ledger.py`."""

    @property
    def organization_id(self) -> str: ...
    @property
    def limit(self) -> int: ...
    @property
    def needed(self) -> int: ...
    @property
    def wanted(self) -> int: ...
    @property
    def given(self) -> int: ...
    @property
    def returned(self) -> Sequence[tuple[int, int]]: ...


class PermitCounts:
    """A connection that grants permits. All methods raise EngineError if the directory fails."""

    def __init__(self, connection: DirectoryConnection) -> None:
        self._connection = connection
        self._next_s = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Self]:
        """A connection for the length of the block."""
        try:
            async with open_alone(dsn, APPLICATION_NAME, _STATEMENT_TIMEOUT_MS) as connection:
                await connection.execute("SET synchronous_commit = off")
                yield cls(connection)
        except psycopg.Error as error:
            raise as_service_error(error) from error

    async def grant(self, asks: Sequence[PermitAsk]) -> list[tuple[int, int, int, int]]:
        """For each, what is granted, what is left, the slot, and when the oldest stops counting (-1: there is none)."""
        await asyncio.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + _INTERVAL_S
        with cut_if_silent(self._connection.fileno(), _TIMEOUT_S):
            cursor = await self._connection.execute(_GRANT, _arguments(asks))
            row = await cursor.fetchone()
        assert row is not None
        return list(zip(row["granted"], row["remaining"], row["granted_in"], row["back_ms"], strict=True))

    async def ping(self) -> None:
        """Checks that the directory answers."""
        with cut_if_silent(self._connection.fileno(), _TIMEOUT_S):
            await self._connection.execute("SELECT 1")


async def delete_old(directory: Directory) -> None:
    """Deletes counts without effect. Those of an organization that sends requests are deleted with the next one."""
    async with directory.connection() as connection:
        while True:
            cursor = await connection.execute("SELECT delete_old_permits() > 0 AS is_more")
            row = await cursor.fetchone()
            assert row is not None
            if not row["is_more"]:
                return


def _arguments(asks: Sequence[PermitAsk]) -> tuple[object, ...]:
    returned = [(place, slot, count) for place, ask in enumerate(asks, 1) for slot, count in ask.returned]
    return (
        [ask.organization_id for ask in asks], [ask.limit for ask in asks], [ask.needed for ask in asks],
        [ask.wanted for ask in asks], [ask.given for ask in asks],
        [place for place, _, _ in returned], [slot for _, slot, _ in returned], [count for _, _, count in returned],
    )  # fmt: skip
