"""One connection to PostgreSQL: libpq in nonblocking pipeline mode, driven by the event loop.

    connection.send_query(b"select 1")
    connection.sync()
    while connection.syncs_due:
        result = await connection.fetch()

A connection serves one request at a time. What is queued between two `sync` calls is one exchange, and `fetch` returns
its results in the same order. The module owns the socket, its callbacks and the call order that libpq requires; what a
statement means is the business of `execution.py`.

Reads are pull-based: unless a task waits in `fetch`, nothing is read. A slow reader therefore holds the backend back
(TCP flow control) instead of filling this process's memory.
"""

import asyncio
import select
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from psycopg import Error as DriverError
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from plainsql_server.core.clock import NO_DEADLINE
from plainsql_server.core.long_work import LONG_BYTES, PARSING
from plainsql_server.core.result import Notices
from plainsql_server.engine.connection.long_reading import read_on
from plainsql_server.engine.connection.notices import LaneSide, NoticeCollector
from plainsql_server.engine.connection.opening import connected
from plainsql_server.engine.connection.prepared import PreparedStatements
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.sqlstate import connection_lost
from plainsql_server.engine.connection.valve import ResultTooLarge, Valve, has_hung_up

# Plain integers, because looking up an enum member costs more than the libpq call whose result it is compared with.
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)
_OK = int(ConnStatus.OK)
_IDLE = int(TransactionStatus.IDLE)
_SEQUENCES = int(SessionState.SEQUENCES)
# The warning that PostgreSQL sends if a commit's wait for synchronous standbys was cancelled. The transaction has
# committed and is reported as such, but it is lost if the server's machine is.
_WAIT_CANCELLED = b"canceling wait for synchronous replication"
# Marks a `sync` among the queued steps. For a statement, the step is its number of rows per chunk.
_SYNC = -1
# A connection that had a larger result in one part is not kept. Its buffer may be twice as large.
_GROWN_BYTES = 1024 * 1024


class Connection:
    """An open connection. Not safe for concurrent use: the pool leases it to one request at a time."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pg = pgconn
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._socket = pgconn.socket
        self._inbox = select.poll()
        self._inbox.register(self._socket, select.POLLIN)
        # Whether the loop watches the socket for readability.
        self.is_watched = False
        # Whether the loop watches the socket for writability.
        self._writing = False
        # The number of unanswered `sync` calls. While it is not 0, an exchange is in progress.
        self.syncs_due = 0
        self._settled: asyncio.Future[None] | None = None
        # Steps that were queued and not yet read to their end, as rows per chunk (0: all rows in one result).
        self._steps: deque[int] = deque()
        self.prepared = PreparedStatements()
        # When its pool took it back last.
        self.idle_since_s = 0.0
        # Set by a request that may have called nextval; see `must_discard_before`.
        self.must_discard_sequences = False
        # How many bytes of an incomplete result to accept, counted from its second chunk on.
        self.max_result_bytes = 0
        # The size of the result taken last if it arrived in many chunks, else 0.
        self.taken_bytes = 0
        # Whether libpq's buffer has grown to hold a long row. It never shrinks, and would be filled in one read.
        self.is_grown = False
        self._valve: Valve | None = None
        # A read on a thread. Until it ends, nothing else may use libpq's connection.
        self._reading: asyncio.Future[bool] | None = None
        self._is_closed = False
        # How often the connection has waited for input since the last `sync`.
        self._waits = 0
        # Set when its statement is interrupted. Between two exchanges the backend is idle and a cancel request hits
        # nothing, so a request must check this before it starts another exchange. Session cleanup resets it.
        self.is_ended = False
        # Until when the request that has the connection may use it. The pool sets it.
        self.deadline = NO_DEADLINE
        # The organization and the index of the cell's host that it is connected to, which its pool knows.
        self.organization_id, self.place = "", 0
        # Whether a transaction committed without waiting for a standby.
        self.is_unreplicated = False
        # Results that were read before this exchange was adopted.
        self._returned: deque[PGresult | None] = deque()
        # The fast lane's side of this connection, if it has been used there.
        self.lane_exchange: LaneSide | None = None
        # The notices of the request that has it; None if there were none.
        self._notices: NoticeCollector | None = None
        # Set on every cell, because a cell whose servers share one address looks like a single server from here.
        pgconn.notice_handler = self._on_notice

    @classmethod
    async def open(cls, conninfo: bytes, timeout_s: float) -> "Connection":
        """Connects. Raises EngineError on failure or timeout; cancelling closes the socket."""
        return cls(await connected(conninfo, timeout_s))

    @property
    def backend_pid(self) -> int:
        return self._pg.backend_pid

    @property
    def socket(self) -> int:
        return self._socket

    @property
    def is_open(self) -> bool:
        return not self._is_closed and self._pg.status == _OK

    @property
    def is_settled(self) -> bool:
        """Whether every exchange has been read to its end."""
        return self.syncs_due == 0

    @property
    def is_idle(self) -> bool:
        """Whether every exchange has been read to its end and no transaction is open."""
        return self.syncs_due == 0 and self._pg.transaction_status == _IDLE

    @property
    def in_failed_transaction(self) -> bool:
        return self._pg.transaction_status == TransactionStatus.INERROR

    @property
    def pgconn(self) -> PGconn:
        """The libpq connection, for `interrupt.py`, which makes a cancel request from it."""
        return self._pg

    def must_discard_before(self, session_state: int) -> bool:
        """Whether DISCARD SEQUENCES must precede a statement that may leave this behind; see `session_state.py`.

        A statement that leaves sequences behind at most calls nothing but functions that are known to touch no session
        state, in a database without code. So it cannot read what an earlier request left: only `currval`, `lastval` and
        stored code could. The command waits for a later statement then.
        """
        return self.must_discard_sequences and session_state > _SEQUENCES

    def send_query(self, sql: bytes, chunk_rows: int = 0, params: Sequence[bytes | None] | None = None) -> None:
        """Queues a statement without preparing it. PostgreSQL infers the parameter types.

        `chunk_rows` is the number of rows that each result holds; 0 means all rows in one result.
        """
        try:
            self._pg.send_query_params(sql, params)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued(chunk_rows)

    def send_prepare(self, name: bytes, sql: bytes) -> None:
        """Queues Parse and Describe for a named statement. Its results count as two steps."""
        try:
            self._pg.send_prepare(name, sql)
            self._queued()
            self._pg.send_describe_prepared(name)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued()

    def send_prepared(self, name: bytes, params: Sequence[bytes | None], chunk_rows: int = 0) -> None:
        """Queues the execution of a prepared statement."""
        try:
            self._pg.send_query_prepared(name, params)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued(chunk_rows)

    def send_close_prepared(self, name: bytes) -> None:
        """Queues Close for a prepared statement."""
        try:
            self._pg.send_close_prepared(name)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued()

    def ask_to_flush(self) -> None:
        """Queues a Flush request: the backend sends the results up to here at once, not only at the `sync`."""
        try:
            self._pg.send_flush_request()
        except DriverError as error:
            raise self._broken(error) from error

    def sync(self) -> None:
        """Ends the exchange with a Sync message and sends what is queued.

        Outside a transaction block, the backend commits when it processes the Sync.
        """
        try:
            self._pg.pipeline_sync()
            self._queued(_SYNC)
            self.syncs_due += 1
            self._waits = 0
            self._flush()
        except DriverError as error:
            raise self._broken(error) from error

    def _flush(self) -> None:
        if self._pg.flush():
            self._loop.add_writer(self._socket, self._on_writable)
            self._writing = True

    def adopt(self, results: Sequence[PGresult | None], chunk_rows: Sequence[int], *, has_read: bool) -> None:
        """Goes on with an exchange that the fast lane has sent: statements, given by their rows per chunk, and a sync.

        `results` are those that the lane has read. `fetch` returns them first.
        """
        self._steps.extend(chunk_rows)
        self._steps.append(_SYNC)
        self.syncs_due += 1
        # After the first read, what is still to come of a result is counted.
        self._waits = 1 if has_read else 0
        self._returned.extend(results)
        # If that fails, `fetch` finds the connection broken, and raises.
        with suppress(DriverError):
            self._flush()

    def unwatch(self) -> None:
        """Stops watching the socket: the fast lane does. The next `fetch` that waits starts it again."""
        self._stop_reading()

    async def fetch(self) -> PGresult | None:
        """Returns the next result of the exchange. None marks the end of one statement's results.

        Raises EngineError if the connection breaks; the outcome of what was running is then unknown. Cancelling leaves
        the exchange unread, and the connection must be closed.
        """
        while self._reading is not None:
            # An earlier task was cancelled while it waited for this.
            await asyncio.wait([self._reading])
        while not self._returned and self._pg.is_busy():
            await self._readable()
        return self._take()

    def _take(self) -> PGresult | None:
        if self._valve is not None:
            self.taken_bytes, self._valve.passed_bytes = self._valve.passed_bytes, 0
            self.is_grown |= self.taken_bytes > _GROWN_BYTES
        was_returned = bool(self._returned)
        result = self._returned.popleft() if was_returned else self._pg.get_result()
        if result is None:
            self._end_of_results(was_returned)
        elif result.status == _PIPELINE_SYNC:
            self.syncs_due -= 1
            self._next_step(was_returned)
            if self.syncs_due == 0:
                self._remove_valve()
                self._announce_settled()
            if self.is_unreplicated:
                self.close()
                raise connection_lost("the wait for a standby was cancelled: a failover may lose the commit")
        return result

    def check(self) -> bool:
        """Whether an idle connection can still be used.

        A healthy server sends nothing to an idle connection. Pending input therefore means that the server is closing
        it, or that a reload changed a reported setting; a new connection is right in that case, too.
        """
        return self.is_open and self.is_idle and not self._inbox.poll(0)

    async def settled(self) -> None:
        """Waits until every exchange has been read to its end, or the connection is closed.

        For a second task, next to the one that reads.
        """
        # The reading task may start the next exchange before this task runs again.
        while not self.is_settled and self.is_open:
            self._settled = self._settled or self._loop.create_future()
            await asyncio.shield(self._settled)

    def close(self) -> None:
        """Closes the socket. Does not stop a running statement: interrupt that first."""
        self._stop_watching()
        self._is_closed = True
        if self._reading is None:
            self._finish()
        self._wake()
        self._announce_settled()

    def _finish(self) -> None:
        if self._valve is not None:
            self._valve.close()
        # They refer to each other, and connections that come and go must not wait for the garbage collector.
        self.lane_exchange = None
        self._pg.notice_handler = None
        self._pg.finish()

    def _on_notice(self, notice: PGresult) -> None:
        # A commit that did not wait for its standby is not a success: a failover may lose it. Its outcome is unknown.
        message = notice.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
        if message.startswith(_WAIT_CANCELLED):
            self.is_unreplicated = True
        if self._notices is None:
            self._notices = NoticeCollector()
        self._notices.add(notice)
        if self.lane_exchange is not None:
            self.lane_exchange.note_notice()

    def take_notices(self) -> Notices | None:
        """The notices that came since the last call, or since `forget_notices`; None if there were none."""
        return None if self._notices is None else self._notices.take()

    def forget_notices(self) -> None:
        """Drops notices that are not of the request that begins now."""
        self._notices = None

    def _queued(self, chunk_rows: int = 0) -> None:
        self._steps.append(chunk_rows)
        if chunk_rows > 0 and len(self._steps) == 1:
            self._pg.set_chunked_rows_mode(chunk_rows)

    def _broken(self, error: DriverError) -> Exception:
        # libpq noticed it while sending, and may have closed the socket. What was sent before may have arrived.
        self.close()
        return connection_lost(str(error))

    def _stop_watching(self) -> None:
        # Call this as soon as libpq finds the connection broken. It has closed the socket by then, and the next
        # connection may get the same descriptor, whose watchers a later call would remove.
        self._stop_reading()
        if self._writing:
            self._loop.remove_writer(self._socket)
            self._writing = False

    def _stop_reading(self) -> None:
        if self.is_watched:
            self._loop.remove_reader(self._watched())
            self.is_watched = False

    def _start_reading(self) -> None:
        if not self.is_watched:
            self._loop.add_reader(self._watched(), self._on_readable)
            self.is_watched = True

    def _watched(self) -> int | Valve:
        return self._socket if self._valve is None else self._valve

    def _insert_valve(self) -> None:
        # The loop's selector registers the socket behind a descriptor, so the watcher must be removed for the swap.
        self._stop_reading()
        self._valve = Valve(self._socket)
        self._start_reading()

    def make_way(self) -> None:
        """Removes the valve, which relays in one direction only. Call it before sending while results are unread."""
        while self._valve is not None and self.is_open and self._inbox.poll(0):
            self._consume()
        if self.is_open:
            self._remove_valve()

    def _remove_valve(self) -> None:
        if self._valve is not None:
            self._stop_reading()
            self._valve.remove()
            self._valve = None
            self.taken_bytes = 0

    def _end_of_results(self, was_returned: bool) -> None:
        # What was returned may have come before the connection broke.
        if not self._returned and not self.is_open:
            self._stop_watching()
            raise connection_lost(self._pg.get_error_message())
        # If the implicit commit fails, PostgreSQL answers the sync with an error first. That error ends like a
        # statement of its own, but no step was queued for it.
        if self._steps[0] != _SYNC:
            self._next_step(was_returned)

    def _next_step(self, was_returned: bool) -> None:
        self._steps.popleft()
        # libpq accepts chunked mode only for the statement at the head of the pipeline and before its rows are read,
        # and not for one that PostgreSQL skips because of an earlier error. The fast lane has done it for its results.
        is_next = not was_returned and self._steps and self._steps[0] > 0
        if is_next and self._pg.pipeline_status != PipelineStatus.ABORTED:
            self._pg.set_chunked_rows_mode(self._steps[0])

    async def _readable(self) -> None:
        if self._valve is not None and self._inbox.poll(0):
            # libpq has not read all of the last chunk, and the server may send nothing more.
            self._consume()
            self._check_sound()
            return
        # uvloop reports a hang-up once, perhaps together with the server's last bytes, and then stops watching. So a
        # second wait must poll.
        if self._waits and has_hung_up(self._watched()):
            self._take_chunk()
            self._check_sound()
            return
        if self._waits and self._is_countable() and self._awaits_rows():
            # The beginning of this result may have arrived with an earlier one. Then libpq has already enlarged its
            # buffer for all of it, and would go on reading as long as the server keeps up.
            self._insert_valve()
        self._waits += 1
        self._start_reading()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self._check_sound()

    def _take_chunk(self) -> None:
        if self._valve is not None and not self._inbox.poll(0):
            self._valve.pass_on()
        self._consume()

    def _check_sound(self) -> None:
        if not self.is_open:
            raise connection_lost("" if self._reading else self._pg.get_error_message())
        if self._valve is not None and self._valve.passed_bytes > self.max_result_bytes:
            self.close()
            raise ResultTooLarge

    def _on_readable(self) -> None:
        if self._waiter is None:
            # No task waits for input: stop watching, or the level-triggered loop would spin.
            self._stop_reading()
            return
        if self._valve is not None and self._valve.passed_bytes > LONG_BYTES:
            self._read_on_thread(self._valve)
        else:
            self._take_chunk()

    def _read_on_thread(self, valve: Valve) -> None:
        self._stop_reading()
        how = (self._pg, valve, self._inbox, self.max_result_bytes)
        self._reading = PARSING.submit(self.organization_id, read_on, *how)
        self._reading.add_done_callback(self._on_read)

    def _on_read(self, reading: asyncio.Future[bool]) -> None:
        self._reading = None
        if self._is_closed:
            self._finish()
        elif reading.exception() is not None:
            self.close()
        elif reading.result():
            self._wake()
        elif self._waiter is not None:
            self._start_reading()

    def _consume(self) -> None:
        try:
            self._pg.consume_input()
        except DriverError:
            # The connection's status is bad now; the waiting task raises the error.
            self._stop_watching()
            self._wake()
            return
        if not self._pg.is_busy():
            self._wake()
        elif self._valve is not None and self._inbox.poll(0):
            # libpq reads only as much as its buffer has room for. No event announces what it left in the socket pair,
            # so it must read that before the server's socket is watched again.
            self._consume()
        else:
            self._count_chunk()

    def _count_chunk(self) -> None:
        # Ordinary results arrive in one chunk: whatever is there at the first read, up to some megabytes.
        if self._valve is not None:
            if self._valve.passed_bytes > self.max_result_bytes:
                self._wake()
        elif self._is_countable():
            self._insert_valve()

    def _is_countable(self) -> bool:
        """Whether a valve is needed and possible: results are limited, and nothing is left to send through it."""
        return self._valve is None and self.max_result_bytes > 0 and not self._writing

    def _awaits_rows(self) -> bool:
        return bool(self._steps) and self._steps[0] > 0

    def _on_writable(self) -> None:
        try:
            unsent = self._pg.flush()
        except DriverError:
            unsent = 0
            self._wake()
        if not unsent:
            self._loop.remove_writer(self._socket)
            self._writing = False

    def _announce_settled(self) -> None:
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
