"""Runs one statement on a leased connection: prepares it if it has parameters, sends it, reads its results.

    stream = ResultStream(connection, catalog, Statement("select 1"))
    await stream.start()
    while (rows := await stream.next_batch()) is not None: …

`data_plane/query.py` collects its rows. `read_stream.py` builds on it for streams. `transaction.py` has its own
exchange, because it sends many statements at once.
"""

from collections.abc import Sequence
from typing import NoReturn

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import EngineError, InternalError, Outcome, RequestError, ServiceError, StatementError
from plainsql_server.core.long_work import LONG_BYTES
from plainsql_server.core.loop_share import share_loop
from plainsql_server.core.result import NO_COLUMNS, Completion, Shape
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import (
    close_prepared,
    drain,
    fail,
    queue_discard_sequences,
    run_command,
)
from plainsql_server.engine.connection.prepared import Prepared
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.sqlstate import connection_lost, is_stale_plan
from plainsql_server.engine.encoding.parameters import encode_parameter
from plainsql_server.engine.encoding.rows import RowRenderer
from plainsql_server.engine.encoding.shapes import DEFAULT_ENCODING, Encoding, origins_of
from plainsql_server.engine.encoding.types import EngineType

# Rows per libpq result (chunked rows mode): enough to keep calls cheap, and few enough that even large rows do not fill
# memory before the size limit is noticed.
CHUNK_ROWS = 32
# After encoding this many rows, a fraction of a millisecond's work, other requests run.
_SHARED_ROWS = 8 * CHUNK_ROWS

BEGIN = {
    False: b"begin isolation level serializable read write",
    True: b"begin isolation level serializable read only",
}
# Before PostgreSQL 16, RESET can change the isolation level of a running transaction and make a read-only one writable.
# Stored code can do that, too. So these guards run before the commit and fail if the mode has changed. A transaction
# that wrote has a transaction ID, even if it was made read-only again afterwards. The isolation level cannot be
# restored that way.
NOTHING_DEFERRED = b"set constraints all immediate"
STILL_SERIALIZABLE = b"set transaction isolation level serializable"
STILL_READ_ONLY = (
    b"select 1 operator(pg_catalog./) (pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'on'"
    b" and pg_catalog.pg_current_xact_id_if_assigned() is null)::pg_catalog.int4"
)
CHANGED_MODE = frozenset(["25001", "22012"])
_CURSOR = "plainsql_cursor"
_CHANGES_ROWS = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE", "COPY"])
# Plain integers: with this many lookups per request, enum members cost measurable time.
_HAS_ROWS = frozenset([int(ExecStatus.TUPLES_CHUNK), int(ExecStatus.TUPLES_OK)])
_COMMAND_OK = int(ExecStatus.COMMAND_OK)
_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)


class Statement:
    """One SQL statement: its text, its parameters as the raw JSON that the client sent, and how to run it."""

    __slots__ = ("chunk_rows", "encoding", "first_rows", "guarded", "params", "read_only", "sql")

    def __init__(
        self, sql: str, params: Sequence[bytes] = (), *, encoding: Encoding = DEFAULT_ENCODING, read_only: bool = False
    ) -> None:
        self.sql = sql
        self.params = params
        self.encoding = encoding
        self.read_only = read_only
        # Rows per result.
        self.chunk_rows = CHUNK_ROWS
        # Whether the statement could make its read-only transaction writable.
        self.guarded = False
        # Fetch only this many rows, through a cursor. For SELECT, VALUES and TABLE.
        self.first_rows: int | None = None

    def session_state(self) -> SessionState:
        """The session state that the statement may leave behind, if it ends now."""
        return SessionState.EVERYTHING


class ResultStream:
    """The result of one statement, read on demand.

    `start` sends the statement and waits for its first result. Then `next_batch` returns encoded rows until None, and
    sets `completion`. Any of them may raise. After that, or if one is cancelled, the connection may not be idle and
    must not be used for another statement.
    """

    def __init__(self, connection: Connection, catalog: Catalog, statement: Statement) -> None:
        self._connection = connection
        self._catalog = catalog
        self._statement = statement
        self._started_us = monotonic_us()
        self._pending: PGresult | None = None
        self._renderer: RowRenderer | None = None
        self._tag = b""
        # Rows encoded since other requests last ran for certain.
        self._unshared_rows = 0
        self.shape: Shape = NO_COLUMNS
        self.completion: Completion | None = None

    async def start(self) -> None:
        """Sends the statement and waits for its first result. Raises errors that occur before the first row."""
        try:
            await self._start()
        except ServiceError as error:
            await self._start_again(error)

    async def resume(self, prepared: Prepared | None, sent_us: int) -> None:
        """Like `start`, for a statement that the fast lane has sent, by its prepared name if it has parameters."""
        self._started_us = sent_us
        try:
            if self._statement.read_only:
                await self._skip_step()
            self._pending = await self._first_result(prepared)
        except ServiceError as error:
            await self._start_again(error)

    async def _start_again(self, error: ServiceError) -> None:
        if not is_stale_plan(error):
            raise error
        # The schema has changed since the statement was prepared. Nothing was executed: prepare it again.
        if self._connection.in_failed_transaction:
            # A read-only statement has a transaction around it, in which nothing can be prepared any more.
            await run_command(self._connection, b"rollback")
        await close_prepared(self._connection, self._connection.prepared.forget(self._text()))
        await self._start()

    async def next_batch(self) -> list[bytes] | None:
        """Returns the next rows, at least one, or None at the end. By then the statement has committed."""
        if self.completion is not None:
            return None
        connection = self._connection
        result, self._pending = self._pending, None
        while True:
            if result is None:
                result = await connection.fetch()
            if result is None:
                break
            if result.status == _FATAL_ERROR:
                await fail(connection, result)
            self._tag = result.command_status or self._tag
            if result.ntuples and self._renderer is not None:
                return await self._encoded(result, self._renderer)
            result = None
        # Read up to the answer to the sync: only then has PostgreSQL committed, or failed to.
        await self._drain()
        command, affected = read_command_tag(self._tag, returns_rows=self._renderer is not None)
        if self._statement.first_rows is not None:
            command = "SELECT"
        exec_us = monotonic_us() - self._started_us
        self.completion = Completion(command, affected, exec_us, connection.take_notices(), self._tag)
        return None

    async def _encoded(self, result: PGresult, renderer: RowRenderer) -> list[bytes]:
        """The rows of the result that was fetched last. Other requests run before it if there were many others."""
        if self._connection.taken_bytes > LONG_BYTES:
            return await renderer.render_long(self._connection.organization_id, result, 0, result.ntuples)
        self._unshared_rows += result.ntuples
        if self._unshared_rows > _SHARED_ROWS:
            self._unshared_rows = 0
            await share_loop()
        return renderer.render(result)

    async def _drain(self) -> None:
        try:
            await drain(self._connection)
        except EngineError as error:
            # The commit was in flight when the connection broke: the outcome is unknown.
            raise connection_lost(error.internal_context or "") from error
        except StatementError as error:
            if self._statement.guarded and error.diagnosis.sqlstate in CHANGED_MODE:
                raise changed_mode() from error
            raise

    def elapsed_ms(self) -> int:
        """Milliseconds since the statement started."""
        return (monotonic_us() - self._started_us) // 1000

    async def _start(self) -> None:
        connection, sql, params, chunk_rows = self._connection, self._text(), self._statement.params, self._chunk_rows()
        connection.forget_notices()
        prepared: Prepared | None = None
        if params:
            prepared = connection.prepared.find(sql) or await self._prepare(sql)
            values = encode_parameters(params, prepared.parameter_types)
            skipped = self._send_preamble()
            connection.send_prepared(prepared.name, values, chunk_rows)
        else:
            skipped = self._send_preamble()
            connection.send_query(sql.encode(), chunk_rows)
        skipped += self._send_rest()
        connection.sync()
        for _ in range(skipped):
            await self._skip_step()
        self._pending = await self._first_result(prepared if self._statement.first_rows is None else None)

    def _text(self) -> str:
        """The SQL to send."""
        if self._statement.first_rows is None:
            return self._statement.sql
        return f"declare {_CURSOR} no scroll cursor for {self._statement.sql}"

    def _chunk_rows(self) -> int:
        return self._statement.chunk_rows

    def _send_preamble(self) -> int:
        """Queues the commands that precede the statement in the same flush. Returns the number of pipeline steps."""
        connection, statement = self._connection, self._statement
        steps = queue_discard_sequences(connection, statement.session_state())
        if statement.read_only or statement.first_rows is not None:
            connection.send_query(BEGIN[statement.read_only])
            steps += 1
        return steps

    def _send_rest(self) -> int:
        """Queues what follows the statement in the same flush. Returns how many steps precede the one with its rows."""
        connection, statement = self._connection, self._statement
        if statement.first_rows is not None:
            fetch = b"fetch forward %d from %b" % (statement.first_rows, _CURSOR.encode())
            connection.send_query(fetch, statement.chunk_rows)
        if statement.read_only and statement.guarded:
            connection.send_query(NOTHING_DEFERRED)
            connection.send_query(STILL_READ_ONLY)
        if statement.read_only or statement.first_rows is not None:
            connection.send_query(b"commit")
        return 0 if statement.first_rows is None else 1

    async def _skip_step(self) -> None:
        while (result := await self._connection.fetch()) is not None:
            if result.status == _FATAL_ERROR:
                await fail(self._connection, result)
            if result.status == _PIPELINE_SYNC:
                return

    async def _first_result(self, prepared: Prepared | None) -> PGresult:
        result = await self._connection.fetch()
        if result is None:
            raise InternalError("a statement without a result")
        if result.status in _HAS_ROWS:
            await self._choose_rendering(result, prepared)
        elif result.status != _COMMAND_OK:
            await self._refuse(result)
        return result

    async def _choose_rendering(self, result: PGresult, prepared: Prepared | None) -> None:
        generation, encoding = self._catalog.generation, self._statement.encoding
        rendering = prepared.rendering(generation, encoding) if prepared else None
        # A column may be of another table than when the statement was prepared, with the same name and type.
        if rendering is None or (encoding.describes_fields and rendering.origins != origins_of(result, encoding)):
            try:
                rendering = await self._catalog.rendering(result, encoding, self._connection.deadline)
            except EngineError as error:
                # The lookup's own connection failed, while this one goes on to commit.
                raise connection_lost(error.internal_context or "") from error
            if prepared:
                prepared.remember(generation, encoding, rendering)
        self.shape, self._renderer = rendering.shape, rendering.rows

    async def _refuse(self, result: PGresult) -> NoReturn:
        if result.status == _FATAL_ERROR:
            await fail(self._connection, result)
        if result.status == ExecStatus.EMPTY_QUERY:
            await drain(self._connection)
            raise RequestError("empty_statement", "The request contains no statement.")
        # COPY in one of its forms, or a status that a newer libpq adds: the exchange cannot be continued.
        self._connection.close()
        raise RequestError("copy_not_supported", "COPY isn't supported.")

    async def _prepare(self, sql: str) -> Prepared:
        connection = self._connection
        name = connection.prepared.new_name()
        connection.send_prepare(name, sql.encode())
        connection.sync()
        oids = await _read_parameter_oids(connection)
        prepared = Prepared(name, await self._catalog.types(oids, connection.deadline))
        await close_prepared(connection, connection.prepared.add(sql, prepared))
        if connection.is_ended:
            # The cancel request came while the backend was idle and hit nothing, so no one would end the statement.
            raise StatementError("query_canceled", "The statement was cancelled before it ran.")
        return prepared


def encode_parameters(params: Sequence[bytes], types: Sequence[EngineType]) -> list[bytes | None]:
    """Encodes parameters in PostgreSQL's text format. Raises RequestError if they do not fit the statement."""
    check_parameter_count(params, types)
    return [encode_parameter(raw, types[index], index + 1) for index, raw in enumerate(params)]


def check_parameter_count(params: Sequence[object], types: Sequence[EngineType]) -> None:
    """Raises RequestError unless the number of parameters is what the statement expects."""
    if len(types) != len(params):
        raise RequestError(
            "wrong_parameter_count",
            f"The statement expects {_counted(len(types))}; the request has {_counted(len(params))}.",
        )


def _counted(parameters: int) -> str:
    return "1 parameter" if parameters == 1 else f"{parameters} parameters"


def changed_mode() -> RequestError:
    """The error for a guard that found the transaction's mode changed."""
    return RequestError(
        "transaction_control",
        "A statement changed the transaction's isolation level, or wrote in a read-only transaction.",
        outcome=Outcome.ROLLED_BACK,
    )


def read_command_tag(tag: bytes, *, returns_rows: bool) -> tuple[str, int]:
    """Splits a command tag like `INSERT 0 5` into the command and the number of affected rows.

    CREATE TABLE AS and its kin have the tag of a SELECT, but return no rows: they have stored them.
    """
    if tag.startswith(b"SELECT"):
        return "SELECT", 0 if returns_rows else int(tag[6:] or b"0")
    words = tag.decode().split(" ")
    command = " ".join(word for word in words if not word.isdigit())
    return command, int(words[-1]) if command in _CHANGES_ROWS else 0


async def _read_parameter_oids(connection: Connection) -> tuple[int, ...]:
    oids: tuple[int, ...] = ()
    while connection.syncs_due:
        result = await connection.fetch()
        if result is None or result.status == _PIPELINE_SYNC:
            continue
        if result.status == _FATAL_ERROR:
            await fail(connection, result)
        oids = tuple([result.param_type(index) for index in range(result.nparams)])
    return oids
