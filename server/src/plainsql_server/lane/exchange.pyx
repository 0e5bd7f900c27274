# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One statement on one engine connection: sent, read and written as JSON without a task or a coroutine.

    if exchange.can_run(plan, session_state, scalars) and exchange.send(scalars) is WAITING: …
    progress = exchange.read()    # each time the socket is readable

A state machine over libpq: it does not wait, and knows neither the event loop nor HTTP. Each engine connection has one.
What it cannot finish it leaves as it is: `taken` holds the results that it has read, with which the ordinary path goes
on.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

from plainsql_server.lane cimport libpq
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.reasons cimport ERROR, LARGE, SESSION, STATEMENT, TYPE

from plainsql_server.core.result import NO_COLUMNS
from plainsql_server.lane.reasons import NAMES

cdef extern from "poll.h":
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *, unsigned long, int) noexcept
    short POLLIN

cdef frozenset JSON_OIDS = frozenset([114, 3802])
cdef bytes no_columns_json = NO_COLUMNS.json


cdef class Client:
    """Whom an exchange reports to."""

    cdef int on_progress(self, Exchange exchange, Progress progress) except -1:
        """Called when the statement has been answered, or must be handed over."""
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

    cdef bint is_quiet(self) noexcept:
        """Whether the connection is open and the server has sent nothing since the last statement."""
        cdef pollfd look
        look.fd, look.events = self.fd, POLLIN
        return libpq.connection_status(self.pg) == libpq.CONNECTION_OK and poll(&look, 1, 0) == 0

    cdef bint can_run(self, QueryPlan plan, int session_state, Scalars scalars) except -1:
        """Whether the statement can be sent as it is: with parameters, only if this connection has prepared it.

        `session_state` is what the statement may leave behind.
        """
        cdef PyObject *found
        self.reason = SESSION
        if self.connection.must_discard_before(session_state):
            return False
        self.reason = STATEMENT
        if plan.frame.is_whole:
            self.name = self.prepared = None
            return True
        found = PyDict_GetItem(self.by_sql, plan.sql)
        if found == NULL:
            return False
        if <object>found is not self.prepared:
            self.prepare_for(plan.sql)
        return scalars.count == self.parameters and not scalars.strings & self.json_parameters

    cdef int prepare_for(self, str sql) except -1:
        self.prepared, self.sql = self.connection.prepared.find(sql), sql
        types = self.prepared.parameter_types
        self.name, self.parameters = self.prepared.name, len(types)
        # A string for a json parameter is JSON itself, quotes included, which the ordinary path knows.
        self.json_parameters = 0
        for index, type_ in enumerate(types[:32]):
            if type_.resolved().oid in JSON_OIDS:
                self.json_parameters |= 1u << index
        self.encoding = None
        return 0

    cdef Progress send(self, Scalars scalars) except *:
        cdef int done
        self.taken, self.tag, self.rows = [], b"", 0
        self.has_shape = self.has_read = False
        self.sent_ns = monotonic_ns()
        if self.name is None:
            done = libpq.send_params(self.pg, PyBytes_AS_STRING(self.plan.text), 0, NULL, NULL, NULL, NULL, 0)
        else:
            done = libpq.send_prepared(
                self.pg, PyBytes_AS_STRING(self.name), scalars.count, scalars.values, NULL, NULL, 0
            )
        if done and libpq.set_chunked_rows(self.pg, self.plan.chunk_rows) and libpq.pipeline_sync(self.pg):
            if libpq.flush(self.pg) == 0:
                return WAITING
        # Broken, or the socket is full: the ordinary path finds out which.
        return self.convert(ERROR)

    cdef Progress convert(self, Reason reason) noexcept:
        self.reason = reason
        return CONVERT

    cdef Progress read(self) except *:
        cdef Progress progress
        self.has_read = True
        if not libpq.consume_input(self.pg):
            return self.convert(ERROR)
        while not libpq.is_busy(self.pg):
            progress = self.take()
            if progress != WAITING:
                return progress
        # What does not arrive in one read may be large, and the ordinary path limits how much of it is in memory. Nor
        # would the rest be announced: each arrival is, once.
        return self.convert(LARGE)

    cdef Progress take(self) except *:
        """Takes one result. WAITING means that there may be another."""
        cdef int status
        result = self.get_result()
        self.taken.append(result)
        if result is None:
            return WAITING if libpq.connection_status(self.pg) == libpq.CONNECTION_OK else self.convert(ERROR)
        status = result.status
        if status == libpq.PIPELINE_SYNC:
            return DONE
        if status == libpq.TUPLES_CHUNK or status == libpq.TUPLES_OK:
            if status == libpq.TUPLES_CHUNK and self.rows:
                return self.convert(LARGE)
            if not self.choose_writer(result):
                return self.convert(TYPE)
            self.has_shape = True
            if status == libpq.TUPLES_CHUNK:
                self.rows = libpq.rows_of(<void *><size_t>result.pgresult_ptr)
                if 0 <= self.plan.max_rows < self.rows:
                    return self.convert(LARGE)
        elif status != libpq.COMMAND_OK:
            return self.convert(ERROR)
        tag = result.command_status
        if tag:
            self.tag = tag
        return WAITING

    cdef bint choose_writer(self, result) except -1:
        """Finds out how the rows are written; False if that takes a lookup."""
        catalog, encoding = self.caller.catalog, self.plan.encoding
        cdef long generation = catalog.generation
        if self.name is not None and self.encoding is encoding and self.generation == generation:
            return True
        rendering = self.prepared.rendering(generation, encoding) if self.name is not None else None
        if rendering is None:
            rendering = catalog.known_rendering(result, encoding)
            if rendering is None:
                return False
            if self.name is not None:
                self.prepared.remember(generation, encoding, rendering)
        writer = rendering.rows.writer
        if writer is None:
            return False
        self.writer, self.shape_json = writer, rendering.shape.json
        self.encoding, self.generation = encoding, generation
        return True

    cdef int write_rows(self, Buffer out) except -1:
        """Writes the rows, with commas between them. Raises what an encoder raises."""
        if self.rows:
            self.writer.write_into(
                <void *><size_t>(<object>self.taken[0]).pgresult_ptr, self.rows, &out.start, &out.used, &out.room
            )
        return 0

    cdef int clear(self) except -1:
        """Forgets the statement that has ended."""
        self.client = self.caller = self.plan = None
        self.taken = None
        return 0

    cdef bytes shape(self):
        return self.shape_json if self.has_shape else no_columns_json

    # What follows is for tests, which cannot call C functions.

    def try_to_send(self, QueryPlan plan not None, Caller caller not None, int session_state, Scalars scalars not None):
        """Sends a statement. Returns its progress, or None if it cannot be sent as it is."""
        if not self.is_quiet() or not self.can_run(plan, session_state, scalars):
            return None
        self.caller, self.plan = caller, plan
        return <int>self.send(scalars)

    def read_arrival(self):
        """Reads once. Returns the progress."""
        return <int>self.read()

    @property
    def reason_name(self):
        return NAMES[<int>self.reason]

    @property
    def results(self):
        return self.taken
