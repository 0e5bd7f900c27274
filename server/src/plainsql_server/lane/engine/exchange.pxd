from libc.stdint cimport int64_t

from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.plans.plan cimport QueryPlan
from plainsql_server.lane.reasons cimport Reason
from plainsql_server.lane.engine.step cimport Step


cdef enum Progress:
    # Nothing to do until more arrives.
    WAITING = 0
    # The statement or the transaction has committed, and its results are here.
    DONE = 1
    # The ordinary path must go on: an error, more rows than one chunk, a type that must be looked up.
    CONVERT = 2
    # libpq did not take all of it: the connection must be closed.
    UNSENT = 3


cdef class Client:
    cdef int on_progress(self, Exchange exchange, Progress progress) except -1
    cdef int abort(self, Exchange exchange) except -1


cdef class Exchange:
    cdef readonly object connection
    cdef readonly int fd
    cdef void *pg
    cdef object get_result, by_sql
    cdef bint has_tls
    # Whom it is running for, and what; None if nothing is.
    cdef Client client
    cdef Caller caller
    cdef QueryPlan plan
    cdef int64_t started_ns, leased_ns, sent_ns, committed_ns
    # The statements, of which the first `count` are running, and whether these are between BEGIN and COMMIT.
    cdef list steps
    cdef int count
    cdef bint is_read_only, in_block
    # What has arrived: results, how many statements were read to their end, BEGIN and COMMIT included, and the rows.
    cdef list taken
    cdef int ended
    cdef int rows
    cdef size_t held_bytes
    # Whether the socket was read for it.
    cdef bint has_read
    # Whether COMMIT, or the sync that commits a single statement, may have been sent.
    cdef readonly bint may_have_committed
    # Whether the server has sent a notice. The connection has it.
    cdef bint has_notice
    # Why the lane cannot run it, or not to its end.
    cdef Reason reason

    cdef bint is_quiet(self) noexcept
    cdef bint can_run(self, QueryPlan plan, Caller caller, int session_state) except -1
    cdef Progress send(self) except *
    cdef bint send_steps(self) except -1
    cdef Progress convert(self, Reason reason) noexcept
    cdef Progress read(self) except *
    cdef Progress read_once(self) except *
    cdef bint has_begun_result(self) noexcept
    cdef Progress take(self) except *
    cdef Progress take_of_step(self, Step step, result, int status) except *
    cdef Progress end_statement(self) except *
    cdef int clear(self) except -1
    cdef tuple chunk_rows(self)
    cdef object sent(self)
