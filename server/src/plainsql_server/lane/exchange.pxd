from libc.stdint cimport int64_t

from plainsql_server.engine.encoding.row_writer cimport RowWriter
from plainsql_server.lane.buffer cimport Buffer
from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.frame cimport Scalars
from plainsql_server.lane.plan cimport QueryPlan
from plainsql_server.lane.reasons cimport Reason


cdef enum Progress:
    # Nothing to do until more arrives.
    WAITING = 0
    # The statement has committed, and its result is here.
    DONE = 1
    # The ordinary path must go on: an error, more rows than one chunk, a type that must be looked up.
    CONVERT = 2


cdef class Client:
    cdef int on_progress(self, Exchange exchange, Progress progress) except -1
    cdef int abort(self, Exchange exchange) except -1


cdef class Exchange:
    cdef readonly object connection
    cdef readonly int fd
    cdef void *pg
    cdef object get_result, by_sql
    # Whom the running statement is for; None if there is none.
    cdef Client client
    cdef Caller caller
    cdef QueryPlan plan
    cdef int64_t started_ns, leased_ns, sent_ns
    # What has arrived.
    cdef list taken
    cdef bytes tag
    cdef int rows
    cdef bint has_shape
    # Whether the socket was read for this statement.
    cdef bint has_read
    # Why the lane cannot run the statement, or not to its end.
    cdef Reason reason
    # The statement that was run last on this connection, and how its rows are written.
    cdef str sql
    cdef object prepared
    cdef bytes name
    cdef int parameters
    cdef unsigned int json_parameters
    cdef object encoding
    cdef long generation
    cdef RowWriter writer
    cdef bytes shape_json

    cdef bint is_quiet(self) noexcept
    cdef bint can_run(self, QueryPlan plan, int session_state, Scalars scalars) except -1
    cdef int prepare_for(self, str sql) except -1
    cdef Progress send(self, Scalars scalars) except *
    cdef Progress convert(self, Reason reason) noexcept
    cdef Progress read(self) except *
    cdef Progress take(self) except *
    cdef bint choose_writer(self, result) except -1
    cdef int write_rows(self, Buffer out) except -1
    cdef bytes shape(self)
    cdef int clear(self) except -1
