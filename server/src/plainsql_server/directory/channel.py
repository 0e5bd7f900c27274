"""Change notifications: one connection per process on which the directory announces whose records changed.

The directory's triggers NOTIFY with each commit that changes a key, a session, a database, a tier or a cell. Two more
channels, on the same connection, announce that a spanning lock is free (`spanning.py`), and that a process joins or
leaves (`processes.py`).

The connection LISTENs and runs a small query at short intervals. The query's response proves that the connection still
listens, and that every change committed before the query has been announced, because PostgreSQL delivers pending
notifications before it is ready for the next query. A connection that fails or stops responding is replaced.
`Freshness` passes the changes on to the caches.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import psycopg

from plainsql_server.core.clock import now
from plainsql_server.core.errors import described
from plainsql_server.core.observation import FailureObserved, Observe
from plainsql_server.core.sockets import cut_if_silent, wait_for_socket
from plainsql_server.directory.connection import DirectoryConnection, connect_alone
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.sharing.processes import PROCESSES_CHANGED
from plainsql_server.directory.spanning import LOCK_RELEASED, SpanningNotifier

APPLICATION_NAME = "plainsql-changes"
_LISTEN = f"LISTEN plainsql_changes; LISTEN {LOCK_RELEASED}; LISTEN {PROCESSES_CHANGED}"
_EVERY_ORGANIZATION = "*"

# Several proofs fit into the time for which one is valid, so a late one does no harm.
_PROOFS_PER_PERIOD = 3
_RETRY_FIRST_S = 0.1
_RETRY_LONGEST_S = 1.0


class Channel:
    """Reports changes to `freshness` until it is cancelled."""

    def __init__(
        self, dsn: str, freshness: Freshness, observe: Observe, notifier: SpanningNotifier | None = None,
        processes_changed: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        self._dsn = dsn
        self._freshness = freshness
        self._notifier = notifier or SpanningNotifier()
        self._processes_changed = processes_changed or asyncio.Event()
        self._observe = observe
        self._retry_s = _RETRY_FIRST_S
        self._reported = False

    async def run(self) -> None:
        """Listens forever. A lost connection is reported once, however many attempts it takes to reconnect."""
        while True:
            try:
                await self._listen()
            except psycopg.Error as error:
                if not self._reported:
                    self._observe(FailureObserved(now(), "failure", "channel of changes", described(error)))
                    self._reported = True
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(self._retry_s * 2, _RETRY_LONGEST_S)

    async def _listen(self) -> None:
        async with self._connection() as connection:
            with self._cut_if_silent(connection):
                await connection.execute(_LISTEN)
            self._freshness.listening()
            while True:
                await self._prove(connection)
                self._retry_s, self._reported = _RETRY_FIRST_S, False
                await self._hear(connection, max(self._freshness.short_s / _PROOFS_PER_PERIOD, _RETRY_FIRST_S))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[DirectoryConnection]:
        try:
            connection = await connect_alone(self._dsn, APPLICATION_NAME)
        except psycopg.Error:
            self._freshness.unavailable = True
            raise
        self._freshness.unavailable = False
        try:
            yield connection
        finally:
            await connection.close()

    async def _prove(self, connection: DirectoryConnection) -> None:
        asked_s = time.monotonic()
        with self._cut_if_silent(connection):
            cursor = await connection.execute("SELECT pg_listening_channels()")
            if not await cursor.fetchall():
                raise psycopg.OperationalError(
                    "the connection is not listening; is there a connection pooler in between?"
                )
            # Process the notifications that arrived with the response first. Only then is the proof complete.
            await self._pass_on(connection)
        self._freshness.proven(asked_s)

    async def _hear(self, connection: DirectoryConnection, for_s: float) -> None:
        """Passes on what is announced in that time. psycopg would wake up ten times a second to wait for it."""
        end_s = asyncio.get_running_loop().time() + for_s
        while True:
            try:
                async with asyncio.timeout_at(end_s):
                    await wait_for_socket(connection.fileno(), write=False)
            except TimeoutError:
                return
            await self._pass_on(connection)

    async def _pass_on(self, connection: DirectoryConnection) -> None:
        """Passes on what has arrived."""
        async for heard in connection.notifies(timeout=0):
            if heard.channel == LOCK_RELEASED:
                self._notifier.announce(heard.payload)
            elif heard.channel == PROCESSES_CHANGED:
                self._processes_changed.set()
            else:
                self._freshness.announce(None if heard.payload == _EVERY_ORGANIZATION else heard.payload)

    def _cut_if_silent(self, connection: DirectoryConnection) -> AbstractContextManager[None]:
        return cut_if_silent(connection.fileno(), max(self._freshness.short_s, _RETRY_FIRST_S))
