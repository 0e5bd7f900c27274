"""One connection to the engine: libpq in nonblocking pipeline mode, waited for with the event loop.

Owns the socket, its callbacks and the order of calls that libpq asks for. One request at a time: what is
sent between two `sync` calls is one exchange, and its results are read with `fetch` in the same order.
Refuses to know what a statement means; see `execution.py`.

Reading is pulled: while nobody waits in `fetch`, nothing is read, so a slow reader holds the engine back
instead of filling our memory.
"""

import asyncio
import select
from collections import deque
from collections.abc import Sequence

from psycopg import Error as DriverError
from psycopg import pq
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PipelineStatus, PollingStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from plainsql_server.engine.connection.prepared import PreparedStatements
from plainsql_server.engine.connection.sqlstate import connection_lost, engine_away
from plainsql_server.engine.connection.valve import Valve

# Plain numbers, because looking a member up in its enumeration costs more than the call that it is compared with.
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)
_OK = int(ConnStatus.OK)
_IDLE = int(TransactionStatus.IDLE)
# What the engine warns with when a commit's wait for standbys was cancelled. It has committed, and says so, but would
# lose it with its machine.
_WAIT_CANCELLED = b"canceling wait for synchronous replication"
# Stands among the queued steps for a `sync`, where others say how many rows make a chunk.
_SYNC = -1


class ResultTooLarge(Exception):
    """The engine sent more than was wanted before a result was complete. The connection is closed.

    Whether the engine has committed is not known: its last bytes may have been on their way.
    """


class Connection:
    """An open connection. Not safe for two tasks at once: the pool lends it to one."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pg = pgconn
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._socket = pgconn.socket
        self._inbox = select.poll()
        self._inbox.register(self._socket, select.POLLIN)
        # While set, the loop tells us when the socket has something to read.
        self._reading = False
        # While set, the loop tells us when the socket takes more.
        self._writing = False
        # How many `sync` calls are not yet answered: while there are any, the exchange is not over.
        self.syncs_due = 0
        self._settled: asyncio.Future[None] | None = None
        # What was queued and not yet read to its end, as rows per chunk (0: all rows in one result).
        self._steps: deque[int] = deque()
        self.prepared = PreparedStatements()
        # Set by a request that may have called nextval; undone in the flush of the next one.
        self.must_discard_sequences = False
        # How much the engine may send before a result is complete, counted from its second piece on.
        self.max_result_bytes = 0
        # How large the result was that was taken last, where it came in many pieces; else 0.
        self.taken_bytes = 0
        self._valve: Valve | None = None
        # How often something was waited for since the last `sync`.
        self._waits = 0
        # Set when what it runs is being ended: between two exchanges the engine has nothing that a cancel could end, so
        # whoever begins another one must look. Unset when it was made clean.
        self.is_ended = False
        # Which of its cell's hosts it goes to.
        self.place = 0
        # Whether the engine committed without having waited for a standby.
        self._is_unreplicated = False
        # On every cell: one whose servers share an address looks like one server from here.
        pgconn.notice_handler = self._on_notice

    @classmethod
    async def open(cls, conninfo: bytes, timeout_s: float) -> "Connection":
        """Connects. Raises EngineError if that fails or takes longer; cancelling it closes the socket."""
        pgconn = pq.PGconn.connect_start(conninfo)
        try:
            async with asyncio.timeout(timeout_s):
                await _finish_connecting(pgconn)
        except TimeoutError:
            pgconn.finish()
            raise engine_away("connecting took too long") from None
        except BaseException:
            pgconn.finish()
            raise
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()
        return cls(pgconn)

    @property
    def backend_pid(self) -> int:
        return self._pg.backend_pid

    @property
    def is_open(self) -> bool:
        return self._pg.status == _OK

    @property
    def is_settled(self) -> bool:
        """Whether every exchange was read to its end."""
        return self.syncs_due == 0

    @property
    def is_idle(self) -> bool:
        """Whether the connection is settled and no transaction is open."""
        return self.syncs_due == 0 and self._pg.transaction_status == _IDLE

    @property
    def in_failed_transaction(self) -> bool:
        return self._pg.transaction_status == TransactionStatus.INERROR

    @property
    def pgconn(self) -> PGconn:
        """The libpq connection, for `interrupt.py`, which must reach the engine past what runs here."""
        return self._pg

    def send_query(self, sql: bytes, chunk_rows: int = 0, params: Sequence[bytes | None] | None = None) -> None:
        """Queues an unprepared statement; its parameters' types are for the engine to infer."""
        try:
            self._pg.send_query_params(sql, params)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued(chunk_rows)

    def send_prepare(self, name: bytes, sql: bytes) -> None:
        """Queues the preparation of a statement and the description of its parameters."""
        try:
            self._pg.send_prepare(name, sql)
            self._queued()
            self._pg.send_describe_prepared(name)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued()

    def send_prepared(self, name: bytes, params: Sequence[bytes | None], chunk_rows: int = 0) -> None:
        """Queues a prepared statement's execution."""
        try:
            self._pg.send_query_prepared(name, params)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued(chunk_rows)

    def send_close_prepared(self, name: bytes) -> None:
        """Queues the forgetting of a prepared statement."""
        try:
            self._pg.send_close_prepared(name)
        except DriverError as error:
            raise self._broken(error) from error
        self._queued()

    def ask_to_flush(self) -> None:
        """Queues the wish that the engine sends what it has by here, instead of gathering it until the `sync`."""
        try:
            self._pg.send_flush_request()
        except DriverError as error:
            raise self._broken(error) from error

    def sync(self) -> None:
        """Ends the exchange and sends what is queued; the engine commits when it gets here."""
        try:
            self._pg.pipeline_sync()
            self._queued(_SYNC)
            self.syncs_due += 1
            self._waits = 0
            unsent = self._pg.flush()
        except DriverError as error:
            raise self._broken(error) from error
        if unsent:
            self._loop.add_writer(self._socket, self._on_writable)
            self._writing = True

    async def fetch(self) -> PGresult | None:
        """The next result of the exchange; None is the end of one statement's results.

        Raises EngineError when the connection breaks; what was under way has an unknown outcome then.
        Cancelling it leaves the exchange unread: the connection must be closed.
        """
        if self._pg.is_busy():
            await self.arrival()
        return self.take()

    @property
    def is_ready(self) -> bool:
        """Whether the next result is here, to be taken without waiting."""
        return not self._pg.is_busy()

    async def arrival(self) -> None:
        """Waits until the next result is here. Raises, and may be cancelled, as `fetch`."""
        while self._pg.is_busy():
            await self._readable()

    def take(self) -> PGresult | None:
        """The next result, which must be here. Most come together, and waiting for each would show."""
        if self._valve is not None:
            self.taken_bytes, self._valve.passed_bytes = self._valve.passed_bytes, 0
        result = self._pg.get_result()
        if result is None:
            self._end_of_results()
        elif result.status == _PIPELINE_SYNC:
            self.syncs_due -= 1
            self._next_step()
            if self.syncs_due == 0:
                self._remove_valve()
                self._announce_settled()
            if self._is_unreplicated:
                self.close()
                raise connection_lost("the wait for a standby was cancelled: the commit may not survive this server")
        return result

    def check(self) -> bool:
        """Whether an idle connection can still be used. A sound engine has nothing to say to it, so what says
        something has said goodbye; or its settings were reloaded, for which a new connection does as well.
        """
        return self.is_open and self.is_idle and not self._inbox.poll(0)

    async def settled(self) -> None:
        """Waits until every exchange was read to its end, or the connection is gone.

        For a second task beside the one that reads.
        """
        # Who reads may have begun the next exchange before we get to run.
        while not self.is_settled and self.is_open:
            self._settled = self._settled or self._loop.create_future()
            await asyncio.shield(self._settled)

    def close(self) -> None:
        """Closes the socket. Does not end what the engine is running: cancel that first."""
        self._stop_watching()
        if self._valve is not None:
            self._valve.close()
        self._pg.notice_handler = None
        self._pg.finish()
        self._wake()
        self._announce_settled()

    def _on_notice(self, notice: PGresult) -> None:
        # A commit that was not replicated is no success: its outcome is unknown.
        message = notice.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
        if message.startswith(_WAIT_CANCELLED):
            self._is_unreplicated = True

    def _queued(self, chunk_rows: int = 0) -> None:
        self._steps.append(chunk_rows)
        if chunk_rows > 0 and len(self._steps) == 1:
            self._pg.set_chunked_rows_mode(chunk_rows)

    def _broken(self, error: DriverError) -> Exception:
        # libpq found out while sending, and may have closed the socket; what was sent before may have arrived.
        self.close()
        return connection_lost(str(error))

    def _stop_watching(self) -> None:
        # At once where libpq found the connection broken: it has closed the socket by then, and the next
        # connection may get the same descriptor, whose watchers must not be taken away later.
        self._stop_reading()
        if self._writing:
            self._loop.remove_writer(self._socket)
            self._writing = False

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._socket if self._valve is None else self._valve)
            self._reading = False

    def _start_reading(self) -> None:
        if not self._reading:
            self._loop.add_reader(self._socket if self._valve is None else self._valve, self._on_readable)
            self._reading = True

    def _insert_valve(self) -> None:
        # The loop knows a descriptor by the socket behind it, so it must look away while that is exchanged.
        self._stop_reading()
        self._valve = Valve(self._socket)
        self._start_reading()

    def make_way(self) -> None:
        """To be called before more is sent while results are still to be read: a valve lets through one way only."""
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

    def _end_of_results(self) -> None:
        if not self.is_open:
            self._stop_watching()
            raise connection_lost(self._pg.get_error_message())
        # A commit that fails answers the sync with an error first, which ends like a statement of its own.
        if self._steps[0] != _SYNC:
            self._next_step()

    def _next_step(self) -> None:
        self._steps.popleft()
        # libpq takes the mode for the statement at the head of the pipeline only, before it reads its rows; and not
        # for one that the engine skips because of an earlier error.
        if self._steps and self._steps[0] > 0 and self._pg.pipeline_status != PipelineStatus.ABORTED:
            self._pg.set_chunked_rows_mode(self._steps[0])

    async def _readable(self) -> None:
        if self._valve is not None and self._inbox.poll(0):
            # libpq did not take all of the last piece, and the engine may have no more to say.
            self._consume()
            self._check_sound()
            return
        if self._waits and self._hung_up():
            self._take_piece()
            self._check_sound()
            return
        if self._waits and self._is_countable() and self._awaits_rows():
            # The beginning of this result may have come with an earlier one. libpq has made room for all of it then,
            # and would read as long as the engine keeps up with it.
            self._insert_valve()
        self._waits += 1
        self._start_reading()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self._check_sound()

    def _hung_up(self) -> bool:
        """Whether the engine has closed its end. uvloop tells that once, perhaps with the engine's last words, and
        looks away then; so who waits again must look for themselves.
        """
        inbox = self._inbox
        if self._valve is not None:
            inbox = select.poll()
            inbox.register(self._valve, select.POLLIN)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in inbox.poll(0))

    def _take_piece(self) -> None:
        if self._valve is not None and not self._inbox.poll(0):
            self._valve.pass_on()
        self._consume()

    def _check_sound(self) -> None:
        if not self.is_open:
            raise connection_lost(self._pg.get_error_message())
        if self._valve is not None and self._valve.passed_bytes > self.max_result_bytes:
            self.close()
            raise ResultTooLarge

    def _on_readable(self) -> None:
        if self._waiter is None:
            # Nobody wants it yet: stop watching, or a level-triggered loop would spin.
            self._stop_reading()
            return
        self._take_piece()

    def _consume(self) -> None:
        try:
            self._pg.consume_input()
        except DriverError:
            # The status is bad now; whoever waits turns that into an error.
            self._stop_watching()
            self._wake()
            return
        if not self._pg.is_busy():
            self._wake()
        elif self._valve is not None and self._inbox.poll(0):
            # libpq reads as much as its buffer has room for. Nothing tells us again of what it left behind the
            # valve, so it must take that before the engine is watched for more.
            self._consume()
        else:
            self._count_piece()

    def _count_piece(self) -> None:
        # Ordinary results come in one piece: what had arrived when we looked, up to some megabytes.
        if self._valve is not None:
            if self._valve.passed_bytes > self.max_result_bytes:
                self._wake()
        elif self._is_countable():
            self._insert_valve()

    def _is_countable(self) -> bool:
        """Whether results are to be counted, and are not yet. A valve lets nothing pass that is still to be sent."""
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


async def _finish_connecting(pgconn: PGconn) -> None:
    while True:
        if pgconn.status == ConnStatus.BAD:
            raise engine_away(pgconn.get_error_message())
        status = pgconn.connect_poll()
        if status == PollingStatus.OK:
            return
        if status == PollingStatus.FAILED:
            raise engine_away(pgconn.get_error_message())
        await wait_for_socket(pgconn.socket, write=status == PollingStatus.WRITING)


async def wait_for_socket(socket: int, *, write: bool) -> None:
    """Waits until a socket of libpq's can be read or written."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(socket, on_ready)
    try:
        await ready
    finally:
        remove(socket)
