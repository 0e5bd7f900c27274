"""One attempt at a transaction on a leased connection: BEGIN, the statements, COMMIT.

    results = await Attempt(lease, catalog, plan).run()

Everything is sent in one flush, unless something depends on an earlier result: a reference, an expectation, a statement
with parameters that this connection has not prepared yet, or an idempotency record. The SQL text has been classified
before, and retries are up to the caller.
"""

import re
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import NoReturn

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import ConflictError, EngineError, Outcome, RequestError, ServiceError, StatementError
from plainsql_server.core.insert_text import InsertText
from plainsql_server.core.long_work import LONG_BYTES
from plainsql_server.core.loop_share import share_loop
from plainsql_server.core.result import Completion, Result
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.exchange import (
    close_prepared,
    drain,
    drain_commit,
    fail,
    queue_discard_sequences,
)
from plainsql_server.engine.connection.interrupt import InterruptReason
from plainsql_server.engine.connection.prepared import Prepared
from plainsql_server.engine.connection.sqlstate import connection_lost, engine_unavailable, is_stale_plan
from plainsql_server.engine.encoding.parameters import encode_parameter
from plainsql_server.engine.encoding.shapes import Rendering
from plainsql_server.engine.encoding.transaction_times import TransactionTimes
from plainsql_server.engine.execution.execution import (
    BEGIN,
    CHANGED_MODE,
    CHUNK_ROWS,
    NOTHING_DEFERRED,
    STILL_READ_ONLY,
    STILL_SERIALIZABLE,
    changed_mode,
    check_parameter_count,
    read_command_tag,
)
from plainsql_server.engine.execution.expectations import check_expectation
from plainsql_server.engine.execution.freezing import QUESTION, Freezing
from plainsql_server.engine.execution.plan import (
    Count,
    Plan,
    ResultReference,
    Results,
    TransactionStep,
    references,
)
from plainsql_server.engine.execution.records import AlreadyRecorded, Record, claim_failure
from plainsql_server.engine.execution.step_reading import StepReading
from plainsql_server.engine.pool.pool import Lease

_HAS_ROWS = frozenset([int(ExecStatus.TUPLES_CHUNK), int(ExecStatus.TUPLES_OK)])
_COMMAND_OK = int(ExecStatus.COMMAND_OK)
_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)
_EMPTY_QUERY = int(ExecStatus.EMPTY_QUERY)
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)

# PostgreSQL allows at most 1,664 columns in a result.
_COLUMN_NUMBER = re.compile(r"[0-9]{1,4}")

# The most to send in one flush: less than the socket buffer takes at once. With data left to send, incoming results
# could not be counted by a valve, and one transaction could fill this process's memory.
FLUSH_BYTES = 32 * 1024

# The isolation level can be changed until the transaction takes its first snapshot. This statement takes one.
_TAKE_SNAPSHOT = b"select"
# The transaction's time. Takes a snapshot, too.
_TIME = b"""select pg_catalog.to_char(
    pg_catalog.timezone('UTC', pg_catalog.now()), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""

# After sending or reading this many statements, other requests run: each takes a tenth of a millisecond or less, and
# while results are there to be read, nothing else waits for anything.
_PAUSE_AFTER_STEPS = 8

# Results with digests may be this many times as large together as one alone: hashing takes time on this process.
_HASHED_RESULTS = 4

# Classes of SQLSTATEs that an INSERT may fail with because of what was added to freeze it.
_REJECTED = ("0A", "42")


class _Due(Enum):
    """What the next result in the pipeline belongs to."""

    OURS = auto()
    CLAIM = auto()
    TIME = auto()
    FACTS = auto()
    PREPARE = auto()
    STEP = auto()
    GUARD = auto()
    COMMIT = auto()
    SYNC = auto()


class Attempt:
    """One attempt at a plan, on a leased connection.

    If `run` raises, the transaction has been rolled back, unless the error's `outcome` says otherwise. Cancelling `run`
    leaves the exchange unread, and the lease then closes the connection.
    """

    def __init__(self, lease: Lease, catalog: Catalog, plan: Plan, results: Results | None = None) -> None:
        self._lease = lease
        self._connection = lease.connection
        self._catalog = catalog
        self._plan = plan
        self._due: deque[tuple[_Due, int]] = deque()
        self._wanted = references(plan.steps)
        self._results = results or Results()
        self._values = self._results.values
        self._counts = self._results.counts
        self._pushed_out: list[bytes] = []
        self._parameter_oids: tuple[int, ...] = ()
        self._queued_bytes = 0
        self._read_until_us = monotonic_us()
        # When the steps ended whose results the fast lane has read.
        self._ended_us: deque[int] = deque()
        # Whether COMMIT may have reached the server.
        self.committing = False
        self.results = self._results.results
        self.commit_us = 0
        self._times = TransactionTimes()
        self._freezing = {
            index: Freezing(step.freeze)
            for index, step in enumerate(plan.steps)
            if isinstance(step.freeze, InsertText) and index not in plan.unfrozen
        }

    async def run(self) -> list[Result]:
        """Runs the transaction. Returns the results of all steps once it has committed."""
        return await self._finish(self._run())

    async def resume(self, sent_us: int, ended_us: Sequence[int]) -> list[Result]:
        """Like `run`, for a transaction that the fast lane has sent in one flush, COMMIT included.

        `ended_us` is when the steps ended that the lane has read to their end.
        """
        self._read_until_us = sent_us
        self._ended_us += ended_us
        self.committing = True
        self._due.append((_Due.OURS, 0))
        self._due += [(_Due.STEP, index) for index in range(len(self._plan.steps))]
        self._due += ((_Due.COMMIT, 0), (_Due.SYNC, 0))
        return await self._finish(self._read_due())

    async def _finish(self, exchange: Awaitable[None]) -> list[Result]:
        """Waits for the exchange, and cleans up after it."""
        try:
            await exchange
        except EngineError as error:
            if not self.committing:
                # COMMIT was not sent, so nothing can have been committed.
                raise engine_unavailable(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
            await self._see_what_came_of(error)
            raise
        except AlreadyRecorded:
            await self._roll_back()
            raise
        except ServiceError as error:
            await self._undo(error)
            raise
        # The transaction has committed, even if the connection fails now.
        with suppress(ServiceError):
            await close_prepared(self._connection, self._pushed_out)
        return self.results

    async def _run(self) -> None:
        plan = self._plan
        self._begin()
        for index, step in enumerate(plan.steps):
            await self._queue_step(index, step)
            if index % _PAUSE_AFTER_STEPS == _PAUSE_AFTER_STEPS - 1:
                await share_loop()
        if plan.dry_run:
            await self._end_dry_run()
            return
        if plan.guarded:
            self._queue_guards()
        if plan.record is not None:
            await self._settle()
            self._queue_record(plan.record)
        elif any(step.expect is not None for step in plan.steps):
            await self._settle()
        # The last chance to stop: after this, COMMIT is sent.
        self._check_not_ended()
        self.committing = True
        self._connection.send_query(b"commit")
        self._due.append((_Due.COMMIT, 0))
        await self._settle()

    async def _end_dry_run(self) -> None:
        if self._plan.check_deferred:
            self._queue_ours(NOTHING_DEFERRED)
        await self._settle()
        await self._roll_back()

    def _begin(self) -> None:
        connection, plan = self._connection, self._plan
        connection.forget_notices()
        if queue_discard_sequences(connection, plan.session_state):
            self._due += ((_Due.OURS, 0), (_Due.SYNC, 0))
        connection.send_query(BEGIN[plan.read_only])
        self._due.append((_Due.OURS, 0))
        if plan.record is not None:
            connection.send_query(*plan.record.claim())
            self._due.append((_Due.CLAIM, 0))
        if plan.needs_time:
            connection.send_query(_TIME)
            self._due.append((_Due.TIME, 0))
        elif plan.first_takes_no_snapshot and plan.record is None:
            connection.send_query(_TAKE_SNAPSHOT)
            self._due.append((_Due.OURS, 0))

    async def _queue_step(self, index: int, step: TransactionStep) -> None:
        size_bytes = len(step.sql) + sum(len(param) for param in step.params if isinstance(param, bytes))
        is_full = self._queued_bytes and self._queued_bytes + size_bytes > FLUSH_BYTES
        if is_full or any(isinstance(param, ResultReference) for param in step.params):
            await self._settle()
        self._queued_bytes += size_bytes
        if index in self._freezing:
            await self._queue_question(index, self._freezing[index])
        sql = self._sql(index)
        if step.params:
            if index in self._plan.fresh:
                self._pushed_out += self._connection.prepared.forget(sql)
            prepared = self._connection.prepared.find(sql) or await self._prepare(index, sql)
            values = self._encoded(index, step, prepared)
            self._connection.send_prepared(prepared.name, values, CHUNK_ROWS)
        else:
            self._connection.send_query(sql.encode(), CHUNK_ROWS)
        # Flush after each statement, so that each one's execution time can be measured separately.
        self._connection.ask_to_flush()
        self._due.append((_Due.STEP, index))

    async def _queue_question(self, index: int, freezing: Freezing) -> None:
        if index in self._plan.fresh:
            self._pushed_out += self._connection.prepared.forget(QUESTION)
        prepared = self._connection.prepared.find(QUESTION) or await self._prepare(index, QUESTION)
        self._connection.send_prepared(prepared.name, freezing.question())
        self._due.append((_Due.FACTS, index))

    def _sql(self, index: int) -> str:
        freezing = self._freezing.get(index)
        return self._plan.steps[index].sql if freezing is None else freezing.insert.with_row

    def _queue_guards(self) -> None:
        # Deferred constraints may run code, so they must run before the guards.
        self._queue_ours(NOTHING_DEFERRED)
        for guard in (STILL_SERIALIZABLE, STILL_READ_ONLY)[: 1 + self._plan.read_only]:
            self._connection.send_query(guard)
            self._due.append((_Due.GUARD, 0))

    def _queue_ours(self, sql: bytes) -> None:
        self._connection.send_query(sql)
        self._due.append((_Due.OURS, 0))

    def _queue_record(self, record: Record) -> None:
        self._connection.send_query(*record.finish(self.results))
        self._due.append((_Due.OURS, 0))

    async def _prepare(self, index: int, sql: str) -> Prepared:
        # Prepare inside the transaction and in order: the statement may need what an earlier one created.
        connection = self._connection
        name = connection.prepared.new_name()
        connection.send_prepare(name, sql.encode())
        self._due += ((_Due.PREPARE, index), (_Due.PREPARE, index))
        await self._settle()
        prepared = Prepared(name, await self._catalog.types(self._parameter_oids, self._connection.deadline))
        self._pushed_out += connection.prepared.add(sql, prepared)
        return prepared

    def _encoded(self, index: int, step: TransactionStep, prepared: Prepared) -> list[bytes | None]:
        types = prepared.parameter_types
        try:
            check_parameter_count(step.params, types)
            return [
                self._value(param) if isinstance(param, ResultReference) else encode_parameter(param, types[at], at + 1)
                for at, param in enumerate(step.params)
            ]
        except ServiceError as error:
            error.statement_index = index
            raise

    def _value(self, reference: ResultReference) -> bytes | None:
        if reference.count is not None:
            return b"%d" % self._counts[reference.step][reference.count]
        try:
            return self._values[reference]
        except KeyError:
            raise StatementError(
                "reference_failed",
                f"The reference {reference.path} points to nothing: statement {reference.step} returned"
                f" {self.results[reference.step].row_count} rows with the columns"
                f" {', '.join(self.results[reference.step].shape.columns) or '(none)'}.",
            ) from None

    async def _settle(self) -> None:
        """Ends the exchange with a sync and reads all of its results."""
        if not self.committing:
            self._check_not_ended()
        self._connection.sync()
        self._queued_bytes = 0
        self._due.append((_Due.SYNC, 0))
        await self._read_due()
        if not self.committing:
            self._check_not_ended()

    async def _read_due(self) -> None:
        while self._due:
            due, index = self._due.popleft()
            if due is _Due.STEP:
                await self._read_step(index)
                if index % _PAUSE_AFTER_STEPS == _PAUSE_AFTER_STEPS - 1:
                    await share_loop()
            elif due is _Due.COMMIT:
                await self._read_commit()
            else:
                await self._read_ours(due, index)

    def _check_not_ended(self) -> None:
        # Between two exchanges the backend is not running a statement, so a cancel request hits nothing.
        if self._lease.ended_for is not None:
            raise StatementError("query_canceled", f"The transaction was cancelled: {self._lease.ended_for}.")

    async def _read_ours(self, due: _Due, index: int) -> None:
        connection = self._connection
        while (result := await connection.fetch()) is not None:
            if result.status == _FATAL_ERROR:
                await self._fail(result, due, index)
            if result.status == _PIPELINE_SYNC:
                return
            if due is _Due.TIME and result.ntuples:
                now = result.get_value(0, 0) or b""
                self._plan.now = now.decode()
                self._times = TransactionTimes(now, " ".join(self._plan.nows).encode().split())
            if due is _Due.FACTS and result.nfields:
                self._freezing[index].take_facts(result)
            if due is _Due.PREPARE:
                self._parameter_oids = tuple([result.param_type(at) for at in range(result.nparams)])

    async def _read_commit(self) -> None:
        # After a COMMIT that fails, only the answer to the sync follows.
        await drain_commit(self._connection)
        self._due.clear()
        self.commit_us = monotonic_us() - self._read_until_us

    async def _read_step(self, index: int) -> None:
        plan = self._plan
        reading = StepReading(plan.steps[index], self._freezing.get(index), self._times, plan.digest_key)
        while (result := await self._connection.fetch()) is not None:
            if result.status in _HAS_ROWS:
                await self._take_rows(result, reading, index)
            elif result.status != _COMMAND_OK:
                await self._fail(result, _Due.STEP, index)
            reading.tag = result.command_status or reading.tag
        self._finish_step(reading, index)

    async def _take_rows(self, result: PGresult, reading: StepReading, index: int) -> None:
        freezing = reading.freezing
        if freezing is not None:
            left_bytes = self._plan.max_bytes - self._results.size_bytes
            self._results.size_bytes += freezing.take_rows(result, left_bytes)
            if freezing.insert.returning is None:
                # All that there is to read was added to freeze it.
                return
        if (render := reading.renderer) is None:
            render = reading.start(await self._rendering(result, reading), result)
        left_bytes = _HASHED_RESULTS * self._plan.max_bytes - self._results.hashed_bytes
        is_long = self._connection.taken_bytes > LONG_BYTES
        if not await reading.hash(result, min(self._plan.max_bytes, left_bytes), is_long=is_long):
            self._lease.interrupt(InterruptReason.TOO_LARGE)
        if (by_row := self._wanted.get(index)) is not None:
            for row in range(result.ntuples):
                for reference in by_row.get(reading.row_count + row, ()):
                    self._take_value(result, reading, reference, row)
        reading.row_count += result.ntuples
        if reading.step.rows and len(reading.rows) < self._plan.max_rows and result.ntuples:
            end, whose = self._plan.max_rows - len(reading.rows), self._connection.organization_id
            rows = await render.render_long(whose, result, 0, end) if is_long else render.render_some(result, 0, end)
            self._results.size_bytes += (size_bytes := sum(map(len, rows)))
            if self._check_size():
                reading.rows += rows
                reading.size_bytes += size_bytes

    def _check_size(self) -> bool:
        """Whether the results are not too large. If they are, the transaction is interrupted."""
        is_small = self._results.size_bytes <= self._plan.max_bytes
        if not is_small:
            self._lease.interrupt(InterruptReason.TOO_LARGE)
        return is_small

    async def _rendering(self, result: PGresult, reading: StepReading) -> Rendering:
        try:
            encoding, deadline = reading.step.encoding, self._connection.deadline
            return await self._catalog.rendering(result, encoding, deadline, hidden=reading.hidden)
        except EngineError as error:
            # The lookup's own connection failed, while this one may go on to commit.
            raise connection_lost(error.internal_context or "") from error

    def _take_value(self, result: PGresult, reading: StepReading, reference: ResultReference, row: int) -> None:
        columns = reading.shape.columns
        if reference.column in columns:
            self._values[reference] = result.get_value(row, columns.index(reference.column))
        elif _COLUMN_NUMBER.fullmatch(reference.column) and int(reference.column) < result.nfields - reading.hidden:
            self._values[reference] = result.get_value(row, int(reference.column))

    def _finish_step(self, reading: StepReading, index: int) -> None:
        now_us = self._ended_us.popleft() if self._ended_us else monotonic_us()
        command, affected = read_command_tag(reading.tag, returns_rows=reading.renderer is not None)
        notices = self._connection.take_notices()
        completion = Completion(command, affected, now_us - self._read_until_us, notices, reading.tag)
        self._read_until_us = now_us
        self._results.hashed_bytes += reading.hashed_bytes
        self.results.append(reading.finish(completion, self._plan.max_rows))
        counts = {Count.ROWS: reading.row_count, Count.AFFECTED: affected}
        self._counts.append(counts)
        check_expectation(index, self._plan.steps[index], counts, self.results[-1].digests)

    async def _fail(self, result: PGresult, due: _Due, index: int) -> NoReturn:
        self._due.clear()
        if due is _Due.CLAIM:
            raise await claim_failure(self._connection, result)
        try:
            if result.status == _FATAL_ERROR:
                await fail(self._connection, result)
            if result.status == _EMPTY_QUERY:
                raise RequestError("empty_statement", "The statement is empty.")
            # COPY in one of its forms: the exchange cannot be continued.
            self._connection.close()
            raise RequestError("copy_not_supported", "COPY isn't supported.")
        except ServiceError as error:
            if due in (_Due.STEP, _Due.PREPARE, _Due.FACTS):
                error.statement_index = index
            if due is _Due.GUARD and error.diagnosis.sqlstate in CHANGED_MODE:
                raise changed_mode() from error
            raise

    async def _see_what_came_of(self, error: ServiceError) -> None:
        """Determines the outcome if the service itself failed (a type lookup, for example) with COMMIT in flight."""
        if not self._connection.is_open or self._connection.is_settled:
            return
        error.retryable = False
        try:
            await drain_commit(self._connection)
            error.outcome = Outcome.COMMITTED
        except EngineError:
            error.outcome = Outcome.UNKNOWN
        except ServiceError:
            error.outcome = Outcome.ROLLED_BACK

    async def _undo(self, error: ServiceError) -> None:
        """Rolls back, so that the connection can be reused, and sets the error's outcome."""
        connection = self._connection
        if error.statement_index is not None and is_stale_plan(error):
            self._prepare_anew(error.statement_index)
        elif error.statement_index in self._freezing and (error.diagnosis.sqlstate or "").startswith(_REJECTED):
            # All of them, so that there is one more attempt and not one for each.
            self._plan.unfrozen.update(self._freezing)
        if not isinstance(error, ConflictError):
            error.outcome = Outcome.ROLLED_BACK
        if self.committing:
            await self._see_what_came_of(error)
        await self._roll_back()
        if connection.is_open and connection.is_idle:
            with suppress(ServiceError):
                await close_prepared(connection, self._pushed_out)

    def _prepare_anew(self, index: int) -> None:
        step = self._plan.steps[index]
        if step.params or index in self._freezing:
            self._pushed_out += self._connection.prepared.forget(self._sql(index))
            self._plan.fresh.add(index)

    async def _roll_back(self) -> None:
        connection = self._connection
        # Up to twice: if a statement that was still in the pipeline fails, PostgreSQL skips the first ROLLBACK with it.
        for _ in range(2):
            if not connection.is_open or connection.is_idle:
                break
            connection.make_way()
            connection.send_query(b"rollback")
            connection.sync()
            # The caller gets the error that failed the transaction. A connection that breaks here is closed.
            with suppress(ServiceError):
                await drain(connection)
