"""The blocking client.

`protocol.py`, `control.py` and `transactions.py` implement its calls; `sockets.py` has the sockets. Threads can share a
client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from plainsql.errors import Error
from plainsql.interactive.conflicts import MAX_ATTEMPTS, Attempts
from plainsql.lazy import LazyModule
from plainsql.result import Result, TransactionResult
from plainsql.settings import Configured, Settings, resolve
from plainsql.streaming import ByteStream, Stream
from plainsql.transactions import InteractiveBuilder, TransactionBuilder
from plainsql.transport.driver import Driver, finish
from plainsql.transport.protocol import DEFAULT_TIMEOUT_S, STREAM_LIFE_S, Core, Options, StreamFormat
from plainsql.transport.sockets import open_connection, pause, tls_context
from plainsql.transport.wire import Steps

if TYPE_CHECKING:
    import datetime as dt

    from plainsql import bulk, control
    from plainsql.bulk import OnConflict
    from plainsql.interactive.session import InteractiveSession
else:
    bulk = LazyModule("plainsql.bulk")
    control = LazyModule("plainsql.control")

T = TypeVar("T")


def connect(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    control_url: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    rate_limit_wait_s: float | None = None,
    insecure: bool = False,
) -> Client:
    """Returns a client for the service at `url`.

    Settings that you omit are read from the environment (`PLAINSQL_URL`, `PLAINSQL_KEY`, `PLAINSQL_DATABASE`,
    `PLAINSQL_CA_FILE`, `PLAINSQL_CONTROL_URL`), then from `.plainsql/dev.json` in this folder or the nearest
    one above it, then from what `plainsql login` saved. Nothing is sent until the first call. `timeout_s` limits each
    call as a whole, including retries. If there is no service, a warning of the logger `plainsql` says so at the first
    retry.

    If a rate limit is reached, a call waits, within its `timeout_s`, and says so with a warning of the same logger.
    `rate_limit_wait_s` limits this wait: if it would be longer, the call raises LimitError at once.

    `insecure` (`PLAINSQL_INSECURE=1`) allows an http:// URL of another machine; the key is then sent in clear text.
    """
    settings = resolve(url, key, database=database, ca_file=ca_file, control_url=control_url, insecure=insecure)
    return Client(settings, timeout_s=timeout_s, rate_limit_wait_s=rate_limit_wait_s)


class Client(Configured):
    """A client of the service, with one credential. Close it, or use it in a `with` block.

    Threads can share a client and call it at the same time. A transaction or a stream is for one thread at a time.
    After a fork, the new process needs a client of its own.
    """

    def __init__(
        self, settings: Settings, *, timeout_s: float = DEFAULT_TIMEOUT_S, rate_limit_wait_s: float | None = None
    ) -> None:
        self.settings = settings
        self._core = Core(settings, timeout_s, rate_limit_wait_s)
        tls = tls_context(settings.ca_file) if settings.address.scheme == "https" else None
        self._driver = Driver(open_connection, pause, tls, settings.key)

    def query(
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
        return self._run(self._core.query(sql, params, options))

    def stream(
        self,
        sql: str,
        *params: Any,
        database: str | None = None,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        read_only: bool | None = None,
    ) -> Stream:
        """Runs one statement and returns its rows as they arrive, in constant memory.

        `timeout_s` limits the whole stream. The default is 3,600 seconds, or less if the tier allows less.
        """
        life_s = STREAM_LIFE_S if timeout_s is None else timeout_s
        options = Options(database, life_s, max_rows, read_only)
        return Stream(self._run(self._core.stream(sql, params, options)))

    def query_as_sent(self, sql: str, params: Sequence[Any] = (), options: Options = Options()) -> Result:  # noqa: B008
        """Runs one statement and leaves the values as the service wrote them, for programs that only display them."""
        return self._run(self._core.query(sql, params, options._replace(as_sent=True)))

    def stream_bytes(
        self,
        sql: str,
        *params: Any,
        stream_format: StreamFormat,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        read_only: bool | None = None,
    ) -> ByteStream:
        """Returns the rows as raw CSV or NDJSON bytes, for programs that only copy them."""
        options = Options(None, STREAM_LIFE_S if timeout_s is None else timeout_s, max_rows, read_only)
        return ByteStream(self._run(self._core.stream(sql, params, options, stream_format)), stream_format)

    def tell_when_unavailable(self, say: Callable[[str], None]) -> None:
        """Calls `say` if the service does not answer and a call is retried, and if a call waits for a rate limit."""
        self._core.notice = say

    def insert_rows(
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
        return self._run(bulk.insert_rows(self._core, bulk.Rows(table, rows, columns), on_conflict, options))

    def insert_frame(
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
        return self._run(bulk.insert_rows(self._core, bulk.Rows(table, rows, columns), on_conflict, options))

    def transaction(
        self,
        *,
        database: str | None = None,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        read_only: bool | None = None,
        max_retries: int | None = None,
        idempotency_key: str | None = None,
    ) -> Transaction:
        """Returns a transaction to add statements to, or to query in. The end of its `with` block commits it.

        `max_retries` limits how often the service itself runs a request of this transaction again after a conflict
        (0 to 100; 50 by default): the transaction as a whole, or each rehearsal and the commit. Your code isn't called
        again, and a result that has changed since your code saw it is never retried.
        """
        return Transaction(self, Options(database, timeout_s, max_rows, read_only, idempotency_key), max_retries)

    def request_outcome(self, idempotency_key: str, *, database: str | None = None) -> str:
        """Returns the outcome of the write with this key: "committed", "in_progress" or "not_executed"."""
        return self._run(self._core.request_outcome(idempotency_key, Options(database)))

    def tables(
        self, *, schema: str | None = None, detail: str = "names", database: str | None = None
    ) -> list[dict[str, Any]]:
        """Returns the database's tables. `detail` is "names", "columns" or "full"."""
        return self._run(self._core.tables(schema, detail, Options(database)))

    def health(self) -> dict[str, Any]:
        """Returns the service's health. Its `status` is "ok", "degraded" or "unavailable"."""
        return self._run(self._core.health())

    def server(self) -> dict[str, Any]:
        """Returns the service's name, version, URLs and routes."""
        return dict(self._run(self._core.get("/")))

    def bench(
        self, *, iterations: int | None = None, concurrency: int | None = None, database: str | None = None
    ) -> dict[str, Any]:
        """Runs the service's built-in benchmark on temporary data. Takes a few seconds."""
        return self._run(self._core.bench(iterations, concurrency, Options(database)))

    def reset_database(self, name: str) -> dict[str, int]:
        """Drops everything in a database, for good. Returns how many objects of each kind there were."""
        return self._run(self._core.reset(name))

    # The control plane ------------------------------------------------------------------------------------------

    def create_session(
        self, *, scopes: Sequence[str] | None = None, database: str | None = None, expires_in_s: int | None = None
    ) -> control.Session:
        """Exchanges the client's key for a session that lasts 24 hours. `scopes` and `database` restrict it.

        With `expires_in_s` (60 or more), it lasts for this time only, and can't be extended.
        """
        return self.call(control.create_session(scopes, database, expires_in_s))

    def refresh_session(self) -> control.Session:
        """Extends the client's own session by 24 hours."""
        return self.call(control.refresh_session())

    def end_session(self) -> None:
        """Ends the client's own session."""
        self.call(control.end_session())

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        database: str | None = None,
        expires_at: dt.datetime | None = None,
    ) -> control.Key:
        """Creates an API key. Its `secret` is returned only here."""
        return self.call(control.create_key(name, scopes, database, expires_at))

    def list_keys(self) -> Iterator[control.Key]:
        """Lists the organization's keys, oldest first."""
        return control.pages(control.list_keys(), self.call)

    def rotate_key(self, key_id: str, *, overlap_seconds: int | None = None) -> control.Key:
        """Replaces a key with a new one. The old key stays valid for a while."""
        return self.call(control.rotate_key(key_id, overlap_seconds))

    def revoke_key(self, key_id: str) -> None:
        """Revokes a key and its sessions."""
        self.call(control.revoke_key(key_id))

    def create_database(
        self, name: str, *, branch_of: str | None = None, expires_at: dt.datetime | None = None
    ) -> control.Database:
        """Creates a database: empty, or a copy of the database `branch_of`, which may expire.

        It is ready when the call returns.
        """
        return self.call(control.create_database(name, branch_of, expires_at))

    def list_databases(self) -> Iterator[control.Database]:
        """Lists the organization's databases, oldest first."""
        return control.pages(control.list_databases(), self.call)

    def rename_database(self, database_id: str, name: str) -> control.Database:
        """Renames a database."""
        return self.call(control.change_database(database_id, name, None))

    def make_default_database(self, database_id: str) -> control.Database:
        """Makes a database the default: requests that name no database use it."""
        return self.call(control.change_database(database_id, None, default=True))

    def delete_database(self, database_id: str, *, restorable: bool = True) -> control.Database:
        """Deletes a database. It can be restored for a while, unless `restorable` is False."""
        return self.call(control.delete_database(database_id, restorable=restorable))

    def restore_database(self, database_id: str) -> control.Database:
        """Restores a deleted database."""
        return self.call(control.restore_database(database_id))

    def restore_database_at(self, database_id: str, at: dt.datetime) -> control.Restore:
        """Asks for a database to become what it was at a time. What it is now becomes a deleted database.

        Returns at once: `get_restore` says how far it is. Until it is done, the database is in use as before.
        """
        return self.call(control.restore_database_at(database_id, at))

    def create_branch_at(
        self, name: str, branch_of: str, at: dt.datetime, *, expires_at: dt.datetime | None = None
    ) -> control.Restore:
        """Asks for a new database with what the database `branch_of` was at a time. Returns at once.

        Its id is `branch_id` of the restore. It is ready when the restore is done, and deleted if that fails.
        """
        return self.call(control.create_branch_at(name, branch_of, at, expires_at))

    def get_restore(self, restore_id: str) -> control.Restore:
        """Returns a restore, with how far it is."""
        return self.call(control.get_restore(restore_id))

    def list_restores(self) -> Iterator[control.Restore]:
        """Lists the organization's restores to a point in time, newest first."""
        return control.pages(control.list_restores(), self.call)

    def organization(self) -> control.Organization:
        """Returns the organization that the key belongs to."""
        return self.call(control.organization())

    def rename_organization(self, name: str) -> control.Organization:
        """Renames the organization."""
        return self.call(control.rename_organization(name))

    def usage(self, *, start: dt.date | None = None, end: dt.date | None = None) -> Iterator[dict[str, Any]]:
        """Lists the usage per database and day."""
        return control.pages(control.usage(start, end), self.call)

    def audit(self) -> Iterator[dict[str, Any]]:
        """Lists all changes made through the control plane, newest first."""
        return control.pages(control.audit(), self.call)

    def call(self, call: control.Call[T]) -> T:
        """Makes one call to the control plane."""
        steps = self._core.control(call.method, call.target, call.content, repeatable=call.repeatable)
        return call.read(self._run(steps))

    def run(
        self,
        work: Callable[[Transaction], T],
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
                with self.transaction(database=database, timeout_s=timeout_s, max_retries=max_retries) as together:
                    return work(together)
            except Error as error:
                pause_s = attempts.pause_after(error)
            time.sleep(pause_s)

    def perform(self, steps: Steps[T]) -> T:
        """Runs steps of the protocol, for modules that are built on this client."""
        return self._run(steps)

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

    def run_transaction(self, builder: TransactionBuilder) -> TransactionResult:
        """Sends a transaction."""
        steps = self._core.transaction(builder.statements, builder.options, builder.max_retries)
        return builder.fill(self._run(steps))

    def close(self) -> None:
        """Closes the client's connections."""
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        return finish(self._driver.run(steps, self._core.addresses))


class Transaction(InteractiveBuilder):
    """Statements that run as one transaction, in a `with` block. There are two ways to use it:

    - `add` statements. They are sent together at the end of the block, in one request. The results are in the objects
      that `add` returned.
    - `query` them one by one, and use the results in between. The end of the block commits.

    If the block raises an exception, nothing is committed.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Client, options: Options, max_retries: int | None) -> None:
        super().__init__(options, max_retries)
        self._client = client

    def query(self, sql: str, *params: Any) -> Result:
        """Runs a statement at once and returns its result, which your code can use before the commit.

        Nothing is held open in the service; see the guide to transactions. If the result has changed at the commit,
        everything is rolled back with SQLSTATE 40001. `Client.run` then calls your code again.
        """
        return self._client.perform(self._begun(self._client.interactive).query(sql, params))

    def run(self) -> TransactionResult:
        """Sends the statements. Either all of them take effect, or none."""
        return self._client.run_transaction(self)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_done, self.is_done = self.is_done, True
        if kind is None and self.interactive is not None:
            self.committed(self._client.perform(self.interactive.commit()))
        elif kind is None and not is_done and self.statements:
            self.run()
