"""The blocking client.

`protocol.py`, `control.py` and `transactions.py` implement its calls; `sockets.py` has the sockets. Threads can share a
client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from plainsql.lazy import LazyModule
from plainsql.result import Result, TransactionResult
from plainsql.settings import Settings, resolve
from plainsql.streaming import ByteStream, Stream
from plainsql.transactions import TransactionBuilder
from plainsql.transport.driver import Driver, finish
from plainsql.transport.protocol import DEFAULT_TIMEOUT_S, STREAM_LIFE_S, Core, Options, StreamFormat
from plainsql.transport.sockets import open_connection, pause, tls_context
from plainsql.transport.wire import Steps

if TYPE_CHECKING:
    import datetime as dt

    from plainsql import control
else:
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
) -> Client:
    """Returns a client for the service at `url`.

    Settings that you omit are read from the environment (`PLAINSQL_URL`, `PLAINSQL_KEY`, `PLAINSQL_DATABASE`,
    `PLAINSQL_CA_FILE`, `PLAINSQL_CONTROL_URL`), then from `./.plainsql/dev.json`, then from what `plainsql login`
    saved. Nothing is sent until the first call. `timeout_s` limits each call as a whole, including retries.
    """
    settings = resolve(url, key, database=database, ca_file=ca_file, control_url=control_url)
    return Client(settings, timeout_s=timeout_s)


class Client:
    """A client of the service, with one credential. Close it, or use it in a `with` block."""

    def __init__(self, settings: Settings, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.settings = settings
        self._core = Core(settings, timeout_s)
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
        """Calls `say` once per call if the service does not answer and the call is retried."""
        self._core.notice = say

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
        """Returns a transaction to add statements to. It is sent at the end of its `with` block, or by `run()`."""
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

    # The control plane ------------------------------------------------------------------------------------------

    def create_session(self, *, scopes: Sequence[str] | None = None, database: str | None = None) -> control.Session:
        """Exchanges the client's key for a session that lasts 24 hours. `scopes` and `database` restrict it."""
        return self.call(control.create_session(scopes, database))

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

    def create_database(self, name: str) -> control.Database:
        """Creates a database. It is ready when the call returns."""
        return self.call(control.create_database(name))

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


class Transaction(TransactionBuilder):
    """Statements that run as one transaction: `add` them in a `with` block. They are sent at the end of the block.

    If the block raises an exception, nothing is sent. The results are in the objects that `add` returned.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Client, options: Options, max_retries: int | None) -> None:
        super().__init__(options, max_retries)
        self._client = client

    def run(self) -> TransactionResult:
        """Sends the statements. Either all of them take effect, or none."""
        return self._client.run_transaction(self)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self.is_done and self.statements:
            self.run()
