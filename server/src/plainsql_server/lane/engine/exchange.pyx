# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One statement or transaction on one engine connection: sent and read without a task or a coroutine.

    if exchange.can_run(plan, caller, session_state) and exchange.send() is WAITING: …
    progress = exchange.read()    # each time the socket is readable

A state machine over libpq: it does not wait, and knows neither the event loop nor HTTP. Each engine connection has one.
It sends what the ordinary path sends, in one flush: a statement, between BEGIN and COMMIT if it is read-only; or BEGIN,
the statements of a transaction and COMMIT. What it cannot finish it leaves as it is: `taken` holds the results that it
has read, with which the ordinary path goes on.
"""

from cpython.list cimport PyList_GET_SIZE

from plainsql_server.lane.engine cimport libpq
from plainsql_server.lane.engine.arrival cimport NOTHING, PART, Arrival, peek
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.plans.plan cimport StepPlan
from plainsql_server.lane.reasons cimport ERROR, LARGE, NOTICE, OPTIONS, SESSION, STATEMENT, TYPE
from plainsql_server.lane.engine.step cimport send_text

from plainsql_server.data_plane.head_start import SentStatement, SentTransaction
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.execution.execution import BEGIN
from plainsql_server.lane.reasons import NAMES

cdef int SEQUENCES = int(SessionState.SEQUENCES)
cdef bytes begin_read_write = BEGIN[False], begin_read_only = BEGIN[True]
# What the results of a transaction may take in memory while others are still to come. An ordinary one takes a page for
# each statement.
cdef size_t MAX_HELD_BYTES = 256 * 1024


cdef class Client:
    """Whom an exchange reports to."""

    cdef int on_progress(self, Exchange exchange, Progress progress) except -1:
        """Called when everything has been answered, or must be handed over."""
        raise NotImplementedError

    cdef int abort(self, Exchange exchange) except -1:
        """Called when that has failed: gives up everything that the request holds."""
        raise NotImplementedError


cdef class Exchange:
    """The lane's side of one engine connection."""

    def __init__(self, connection):
        self.connection = connection
        self.pg = <void *><size_t>connection.pgconn.pgconn_ptr
        self.get_result = connection.pgconn.get_result
        self.fd = connection.socket
        self.by_sql = connection.prepared.by_sql
        self.has_tls = libpq.has_tls(self.pg)
        self.steps = [Step()]
        # One may have come with a request before the lane's first.
        self.has_notice = True

    cdef bint is_quiet(self) noexcept:
        """Whether the connection is open and the server has sent nothing since the last statement."""
        return libpq.connection_status(self.pg) == libpq.CONNECTION_OK and peek(self.fd, self.has_tls) == NOTHING

    cdef bint can_run(self, QueryPlan plan, Caller caller, int session_state) except -1:
        """Whether it can be sent as it is. `session_state` is what it may leave behind."""
        cdef int index
        self.is_read_only = plan.read_only or caller.is_read_only
        self.in_block = plan.is_transaction or self.is_read_only
        self.reason = SESSION
        # Before most statements there is nothing to discard, and a call takes time.
        if self.connection.must_discard_sequences and self.connection.must_discard_before(session_state):
            return False
        # The ordinary path has guards for a statement that could change the mode of its transaction.
        self.reason = OPTIONS
        if self.in_block and session_state > SEQUENCES:
            return False
        self.reason = STATEMENT
        self.count = PyList_GET_SIZE(plan.steps)
        while PyList_GET_SIZE(self.steps) < self.count:
            self.steps.append(Step())
        for index in range(self.count):
            if not (<Step>self.steps[index]).can_run(<StepPlan>plan.steps[index], self.connection, self.by_sql):
                return False
        return True

    cdef Progress send(self) except *:
        self.taken, self.ended, self.rows, self.held_bytes = [], 0, 0, 0
        self.has_read = self.may_have_committed = False
        self.sent_ns, self.reason = monotonic_ns(), ERROR
        if self.has_notice:
            # It came with an earlier request.
            self.connection.forget_notices()
            self.has_notice = False
        if not self.send_steps():
            return UNSENT
        self.may_have_committed = True
        if not libpq.pipeline_sync(self.pg):
            return UNSENT
        # If the socket is full, or broke just now, the ordinary path goes on from here.
        return WAITING if libpq.flush(self.pg) == 0 else CONVERT

    cdef bint send_steps(self) except -1:
        cdef QueryPlan plan = self.plan
        cdef int index
        if self.in_block and not send_text(self.pg, begin_read_only if self.is_read_only else begin_read_write):
            return False
        for index in range(self.count):
            if not (<Step>self.steps[index]).send(self.pg, <StepPlan>plan.steps[index]):
                return False
            # As `Attempt` does: the server sends the result of each statement when it has it.
            if plan.is_transaction and not libpq.send_flush_request(self.pg):
                return False
        if self.in_block:
            return send_text(self.pg, b"commit")
        return libpq.set_chunked_rows(self.pg, plan.chunk_rows)

    cdef Progress convert(self, Reason reason) noexcept:
        self.reason = reason
        return CONVERT

    cdef Progress read(self) except *:
        """Reads what has arrived, unless it may be more than the ordinary path would read at once."""
        cdef Progress progress
        cdef Arrival arrival
        if not self.plan.is_transaction:
            progress = self.read_once()
            return self.convert(LARGE) if progress == WAITING else progress
        # The results of a transaction arrive one by one. An arrival may have been read with the one before it.
        while True:
            arrival = peek(self.fd, self.has_tls)
            if arrival == NOTHING:
                return WAITING
            if arrival == PART:
                return self.convert(LARGE)
            progress = self.read_once()
            if progress != WAITING:
                return progress

    cdef Progress read_once(self) except *:
        """Has libpq read once. WAITING means that more is to come."""
        cdef Progress progress
        cdef Py_ssize_t before = PyList_GET_SIZE(self.taken)
        self.has_read = True
        if not libpq.consume_input(self.pg):
            return self.convert(ERROR)
        while not libpq.is_busy(self.pg):
            # Before the result that it came with is taken, so that the ordinary path knows whose notice it is.
            if self.has_notice:
                return self.convert(NOTICE)
            progress = self.take()
            if progress != WAITING:
                return progress
        if self.has_notice:
            # PostgreSQL sends a notice at once, so the result may come later.
            return self.convert(NOTICE)
        if PyList_GET_SIZE(self.taken) == before or self.held_bytes > MAX_HELD_BYTES or self.has_begun_result():
            return self.convert(LARGE)
        return WAITING

    cdef bint has_begun_result(self) noexcept:
        """Whether libpq has read the beginning of the next result, but not its end."""
        cdef int index = self.ended - self.in_block
        # libpq refuses this from then on.
        return 0 <= index < self.count and not libpq.set_chunked_rows(self.pg, self.plan.chunk_rows)

    cdef Progress take(self) except *:
        """Takes one result. WAITING means that there may be another."""
        cdef int status, index = self.ended - self.in_block
        result = self.get_result()
        self.taken.append(result)
        if result is None:
            return self.end_statement()
        status = result.status
        if status == libpq.PIPELINE_SYNC:
            self.committed_ns = monotonic_ns()
            return self.convert(NOTICE) if self.has_notice else DONE
        if 0 <= index < self.count:
            return self.take_of_step(<Step>self.steps[index], result, status)
        # BEGIN or COMMIT, or an error at the end of a single statement, which commits by itself.
        if status != libpq.COMMAND_OK or (index == self.count and result.command_status != b"COMMIT"):
            return self.convert(ERROR)
        return WAITING

    cdef Progress take_of_step(self, Step step, result, int status) except *:
        cdef void *pgresult = <void *><size_t>result.pgresult_ptr
        tag = result.command_status
        if tag:
            step.tag = tag
        if status != libpq.TUPLES_CHUNK and status != libpq.TUPLES_OK:
            return WAITING if status == libpq.COMMAND_OK else self.convert(ERROR)
        # Rows that do not come as a chunk would be missing from the answer.
        if libpq.rows_of(pgresult) and (status == libpq.TUPLES_OK or step.rows):
            return self.convert(LARGE)
        if not step.choose_writer(result, self.caller.catalog, self.plan.encoding):
            return self.convert(TYPE)
        if status == libpq.TUPLES_CHUNK:
            step.result, step.rows = result, libpq.rows_of(pgresult)
            self.rows += step.rows
            self.held_bytes += libpq.memory_of(pgresult)
            if 0 <= self.plan.max_rows < step.rows:
                return self.convert(LARGE)
        return WAITING

    cdef Progress end_statement(self) except *:
        """Goes on to the next statement."""
        cdef int index = self.ended - self.in_block
        if libpq.connection_status(self.pg) != libpq.CONNECTION_OK:
            return self.convert(ERROR)
        if 0 <= index < self.count:
            (<Step>self.steps[index]).ended_ns = monotonic_ns()
        self.ended += 1
        # libpq takes this only for the statement whose results come next.
        if index + 1 < self.count and not libpq.set_chunked_rows(self.pg, self.plan.chunk_rows):
            return self.convert(ERROR)
        return WAITING

    cdef int clear(self) except -1:
        """Forgets what has ended."""
        cdef int index
        for index in range(self.count):
            (<Step>self.steps[index]).clear()
        self.client = self.caller = self.plan = None
        self.taken = None
        return 0

    cdef tuple chunk_rows(self):
        """The rows per chunk of each statement that was sent, for the ordinary path."""
        rows = (self.plan.chunk_rows,) * self.count
        return (0, *rows, 0) if self.in_block else rows

    cdef object sent(self):
        """What was sent, for the ordinary path."""
        cdef Step step = <Step>self.steps[0]
        cdef int index, ended
        if not self.plan.is_transaction:
            return SentStatement(step.prepared, self.sent_ns // 1000)
        ended = max(0, min(self.ended - 1, self.count))
        return SentTransaction(
            self.sent_ns // 1000, [(<Step>self.steps[index]).ended_ns // 1000 for index in range(ended)]
        )

    def note_notice(self):
        """Called by the connection when the server has sent a notice."""
        self.has_notice = True

    # What follows is for tests, which cannot call C functions.

    def try_to_send(self, QueryPlan plan not None, Caller caller not None, int session_state):
        """Sends it. Returns its progress, or None if it cannot be sent as it is."""
        if not self.is_quiet() or not self.can_run(plan, caller, session_state):
            return None
        self.caller, self.plan = caller, plan
        return <int>self.send()

    def read_arrival(self):
        """Reads once. Returns the progress."""
        return <int>self.read()

    @property
    def reason_name(self):
        return NAMES[<int>self.reason]

    @property
    def results(self):
        return self.taken

    @property
    def chunks(self):
        return self.chunk_rows()
