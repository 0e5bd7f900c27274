"""The asyncio client: the same calls as in `client.py`, as coroutines.

`protocol.py`, `control.py` and `transactions.py` implement the calls. A client belongs to one event loop; many tasks
can share it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from plainsql.errors import Error
from plainsql.interactive.conflicts import MAX_ATTEMPTS, Attempts
from plainsql.lazy import LazyModule
from plainsql.result import Result, TransactionResult
from plainsql.settings import Configured, Settings, resolve
from plainsql.streaming import AsyncStream
from plainsql.transactions import InteractiveBuilder, TransactionBuilder
from plainsql.transport.asyncio_sockets import open_connection
from plainsql.transport.driver import Driver
from plainsql.transport.protocol import DEFAULT_TIMEOUT_S, STREAM_LIFE_S, Core, Options
from plainsql.transport.sockets import tls_context
from plainsql.transport.wire import Steps

if TYPE_CHECKING:
    from plainsql import bulk, control
    from plainsql.bulk import OnConflict
    from plainsql.interactive.session import InteractiveSession
else:
    bulk = LazyModule("plainsql.bulk")
    control = LazyModule("plainsql.control")

T = TypeVar("T")


def connect_async(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    control_url: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    rate_limit_wait_s: float | None = None,
    insecure: bool = False,
) -> AsyncClient:
    """Returns an asyncio client for the service at `url`.

    Settings that you omit are read from the environment (`PLAINSQL_URL`, `PLAINSQL_KEY`, `PLAINSQL_DATABASE`,
    `PLAINSQL_CA_FILE`, `PLAINSQL_CONTROL_URL`), then from `.plainsql/dev.json` in this folder or the nearest
    one above it, then from what `plainsql login` saved. Nothing is sent until the first call. `timeout_s` limits each
    call as a whole, including retries.

    If a rate limit is reached, a call waits, within its `timeout_s`, and says so with a warning of the logger
    `plainsql`. `rate_limit_wait_s` limits this wait: if it would be longer, the call raises LimitError at once.

    `insecure` (`PLAINSQL_INSECURE=1`) allows an http:// URL of another machine; the key is then sent in clear text.
    """
    settings = resolve(url, key, database=database, ca_file=ca_file, control_url=control_url, insecure=insecure)
    return AsyncClient(settings, timeout_s=timeout_s, rate_limit_wait_s=rate_limit_wait_s)


class AsyncClient(Configured):
    """A client of the service, with one credential. Close it, or use it in an `async with` block."""

    def __init__(
        self, settings: Settings, *, timeout_s: float = DEFAULT_TIMEOUT_S, rate_limit_wait_s: float | None = None
    ) -> None:
        self.settings = settings
        self._core = Core(settings, timeout_s, rate_limit_wait_s)
        tls = tls_context(settings.ca_file) if settings.address.scheme == "https" else None
        self._driver = Driver(open_connection, asyncio.sleep, tls, settings.key)

    async def query(
        self,
        sql: str,
        *params: Any,
        database: str | None = None,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        read_only: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Result:
        """Runs one statement and returns its whole result.

        `params` are the values of `$1`, `$2`, … A write runs exactly once, even if the connection breaks: it carries
        `idempotency_key`, or a generated key if you pass none. Raises ResultError if the tier's row limit truncated
        the result and you did not pass `max_rows`.
        """
        options = Options(database, timeout_s, max_rows, read_only, idempotency_key)
        return await self._run(self._core.query(sql, params, options))

    async def stream(
        self,
        sql: str,
        *params: Any,
        database: str | None = None,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        read_only: bool | None = None,
    ) -> AsyncStream:
        """Runs one statement and returns its rows as they arrive, in constant memory.

        `timeout_s` limits the whole stream. The default is 3,600 seconds, or less if the tier allows less.
        """
        life_s = STREAM_LIFE_S if timeout_s is None else timeout_s
        options = Options(database, life_s, max_rows, read_only)
        return await AsyncStream.of(await self._run(self._core.stream(sql, params, options)))

    async def insert_rows(
        self,
        table: str,
        rows: Iterable[Any],
        *,
        columns: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        database: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Inserts rows into an existing table, all of them or none, and returns how many.

        The rows are dictionaries, or sequences in the order of `columns`. Any number of rows takes few requests. With
        `on_conflict="nothing"`, a row that violates a unique constraint is skipped. With `"update"`, a row whose
        primary key exists replaces the values of that row.
        """
        options = Options(database, timeout_s)
        return await self._run(bulk.insert_rows(self._core, bulk.Rows(table, rows, columns), on_conflict, options))

    async def insert_frame(
        self,
        table: str,
        frame: Any,
        *,
        on_conflict: OnConflict | None = None,
        database: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Inserts a pandas or polars data frame, or an Arrow table, like `insert_rows`. Absent values become NULL."""
        columns, rows = bulk.frame_rows(frame)
        options = Options(database, timeout_s)
        return await self._run(bulk.insert_rows(self._core, bulk.Rows(table, rows, columns), on_conflict, options))

    def transaction(
        self,
        *,
        database: str | None = None,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        read_only: bool | None = None,
        max_retries: int | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncTransaction:
        """Returns a transaction to add statements to, or to query in. The end of its `async with` block commits it.

        `max_retries` limits how often the service itself runs a request of this transaction again after a conflict
        (0 to 100; 50 by default): the transaction as a whole, or each rehearsal and the commit. Your code isn't called
        again, and a result that has changed since your code saw it is never retried.
        """
        return AsyncTransaction(self, Options(database, timeout_s, max_rows, read_only, idempotency_key), max_retries)

    async def request_outcome(self, idempotency_key: str, *, database: str | None = None) -> str:
        """Returns the outcome of the write with this key: "committed", "in_progress" or "not_executed"."""
        return await self._run(self._core.request_outcome(idempotency_key, Options(database)))

    async def tables(
        self, *, schema: str | None = None, detail: str = "names", database: str | None = None
    ) -> list[dict[str, Any]]:
        """Returns the database's tables. `detail` is "names", "columns" or "full"."""
        return await self._run(self._core.tables(schema, detail, Options(database)))

    async def health(self) -> dict[str, Any]:
        """Returns the service's health. Its `status` is "ok", "degraded" or "unavailable"."""
        return await self._run(self._core.health())

    async def server(self) -> dict[str, Any]:
        """Returns the service's name, version, URLs and routes."""
        return dict(await self._run(self._core.get("/")))

    async def bench(
        self, *, iterations: int | None = None, concurrency: int | None = None, database: str | None = None
    ) -> dict[str, Any]:
        """Runs the service's built-in benchmark on temporary data. Takes a few seconds."""
        return await self._run(self._core.bench(iterations, concurrency, Options(database)))

    async def reset_database(self, name: str) -> dict[str, int]:
        """Drops everything in a database, for good. Returns how many objects of each kind there were."""
        return await self._run(self._core.reset(name))

    # The control plane ------------------------------------------------------------------------------------------

    async def create_session(
        self, *, scopes: Sequence[str] | None = None, database: str | None = None, expires_in_s: int | None = None
    ) -> control.Session:
        """Exchanges the client's key for a session that lasts 24 hours. `scopes` and `database` restrict it.

        With `expires_in_s` (60 or more), it lasts for this time only, and can't be extended.
        """
        return await self.call(control.create_session(scopes, database, expires_in_s))

    async def refresh_session(self) -> control.Session:
        """Extends the client's own session by 24 hours."""
        return await self.call(control.refresh_session())

    async def end_session(self) -> None:
        """Ends the client's own session."""
        await self.call(control.end_session())

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        database: str | None = None,
        expires_at: dt.datetime | None = None,
    ) -> control.Key:
        """Creates an API key. Its `secret` is returned only here."""
        return await self.call(control.create_key(name, scopes, database, expires_at))

    def list_keys(self) -> AsyncIterator[control.Key]:
        """Lists the organization's keys, oldest first."""
        return self._pages(control.list_keys())

    async def rotate_key(self, key_id: str, *, overlap_seconds: int | None = None) -> control.Key:
        """Replaces a key with a new one. The old key stays valid for a while."""
        return await self.call(control.rotate_key(key_id, overlap_seconds))

    async def revoke_key(self, key_id: str) -> None:
        """Revokes a key and its sessions."""
        await self.call(control.revoke_key(key_id))

    async def create_database(
        self, name: str, *, branch_of: str | None = None, expires_at: dt.datetime | None = None
    ) -> control.Database:
        """Creates a database: empty, or a copy of the database `branch_of`, which may expire.

        It is ready when the call returns.
        """
        return await self.call(control.create_database(name, branch_of, expires_at))

    def list_databases(self) -> AsyncIterator[control.Database]:
        """Lists the organization's databases, oldest first."""
        return self._pages(control.list_databases())

    async def rename_database(self, database_id: str, name: str) -> control.Database:
        """Renames a database."""
        return await self.call(control.change_database(database_id, name, None))

    async def make_default_database(self, database_id: str) -> control.Database:
        """Makes a database the default: requests that name no database use it."""
        return await self.call(control.change_database(database_id, None, default=True))

    async def delete_database(self, database_id: str, *, restorable: bool = True) -> control.Database:
        """Deletes a database. It can be restored for a while, unless `restorable` is False."""
        return await self.call(control.delete_database(database_id, restorable=restorable))

    async def restore_database(self, database_id: str) -> control.Database:
        """Restores a deleted database."""
        return await self.call(control.restore_database(database_id))

    async def restore_database_at(self, database_id: str, at: dt.datetime) -> control.Restore:
        """Asks for a database to become what it was at a time. What it is now becomes a deleted database.

        Returns at once: `get_restore` says how far it is. Until it is done, the database is in use as before.
        """
        return await self.call(control.restore_database_at(database_id, at))

    async def create_branch_at(
        self, name: str, branch_of: str, at: dt.datetime, *, expires_at: dt.datetime | None = None
    ) -> control.Restore:
        """Asks for a new database with what the database `branch_of` was at a time. Returns at once.

        Its id is `branch_id` of the restore. It is ready when the restore is done, and deleted if that fails.
        """
        return await self.call(control.create_branch_at(name, branch_of, at, expires_at))

    async def get_restore(self, restore_id: str) -> control.Restore:
        """Returns a restore, with how far it is."""
        return await self.call(control.get_restore(restore_id))

    def list_restores(self) -> AsyncIterator[control.Restore]:
        """Lists the organization's restores to a point in time, newest first."""
        return self._pages(control.list_restores())

    async def organization(self) -> control.Organization:
        """Returns the organization that the key belongs to."""
        return await self.call(control.organization())

    async def rename_organization(self, name: str) -> control.Organization:
        """Renames the organization."""
        return await self.call(control.rename_organization(name))

    def usage(self, *, start: dt.date | None = None, end: dt.date | None = None) -> AsyncIterator[dict[str, Any]]:
        """Lists the usage per database and day."""
        return self._pages(control.usage(start, end))

    def audit(self) -> AsyncIterator[dict[str, Any]]:
        """Lists all changes made through the control plane, newest first."""
        return self._pages(control.audit())

    async def _pages(self, listing: control.Listing[T]) -> AsyncIterator[T]:
        cursor = None
        while True:
            found, cursor = await self.call(listing.page(cursor))
            for each in found:
                yield each
            if cursor is None:
                return

    async def call(self, call: control.Call[T]) -> T:
        """Makes one call to the control plane."""
        steps = self._core.control(call.method, call.target, call.content, repeatable=call.repeatable)
        return call.read(await self._run(steps))

    async def run(
        self,
        work: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        max_attempts: int = MAX_ATTEMPTS,
        max_retries: int | None = None,
        database: str | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Calls `work` with a transaction, commits it, and returns what `work` returned.

        If the transaction conflicts with another one (SQLSTATE 40001 or 40P01), everything is rolled back and `work` is
        called again after a short pause, at most `max_attempts` times in all. So `work` must have no effects outside
        of the database that it can't repeat.

        `max_retries` limits the service's own retries within one attempt, as in `transaction`.
        """
        attempts = Attempts(max_attempts)
        while True:
            try:
                async with self.transaction(
                    database=database, timeout_s=timeout_s, max_retries=max_retries
                ) as together:
                    return await work(together)
            except Error as error:
                pause_s = attempts.pause_after(error)
            await asyncio.sleep(pause_s)

    async def perform(self, steps: Steps[T]) -> T:
        """Runs steps of the protocol, for modules that are built on this client."""
        return await self._run(steps)

    def interactive(
        self,
        options: Options = Options(),  # noqa: B008
        *,
        is_lazy: bool = False,
        max_retries: int | None = None,
    ) -> InteractiveSession:
        """Returns a session for interactive transactions, whose steps `perform` runs."""
        from plainsql.interactive.session import InteractiveSession  # noqa: PLC0415  # slow to import

        return InteractiveSession(self._core, options, is_lazy=is_lazy, max_retries=max_retries)

    async def run_transaction(self, builder: TransactionBuilder) -> TransactionResult:
        """Sends a transaction."""
        steps = self._core.transaction(builder.statements, builder.options, builder.max_retries)
        return builder.fill(await self._run(steps))

    def close(self) -> None:
        """Closes the client's connections."""
        self._driver.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _run(self, steps: Steps[T]) -> T:
        return await self._driver.run(steps, self._core.addresses)


class AsyncTransaction(InteractiveBuilder):
    """Statements that run as one transaction, in an `async with` block. There are two ways to use it:

    - `add` statements. They are sent together at the end of the block, in one request. The results are in the objects
      that `add` returned.
    - `query` them one by one, and use the results in between. The end of the block commits.

    If the block raises an exception, nothing is committed.
    """

    __slots__ = ("_client",)

    def __init__(self, client: AsyncClient, options: Options, max_retries: int | None) -> None:
        super().__init__(options, max_retries)
        self._client = client

    async def query(self, sql: str, *params: Any) -> Result:
        """Runs a statement at once and returns its result, which your code can use before the commit.

        Nothing is held open in the service; see the guide to transactions. If the result has changed at the commit,
        everything is rolled back with SQLSTATE 40001. `Client.run` then calls your code again.
        """
        return await self._client.perform(self._begun(self._client.interactive).query(sql, params))

    async def run(self) -> TransactionResult:
        """Sends the statements. Either all of them take effect, or none."""
        return await self._client.run_transaction(self)

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_done, self.is_done = self.is_done, True
        if kind is None and self.interactive is not None:
            self.committed(await self._client.perform(self.interactive.commit()))
        elif kind is None and not is_done and self.statements:
            await self.run()
