from libc.stdint cimport int64_t

from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.exchange cimport Client, Exchange, Progress
from plainsql_server.lane.known_head cimport KnownHead
from plainsql_server.lane.lane cimport Lane, Waiting
from plainsql_server.lane.plan cimport QueryPlan


cdef class WaitingQuery(Waiting):
    cdef Track track


cdef class Track(Client):
    cdef Lane lane
    cdef object protocol, parser_head, parse, transport
    cdef int fd
    # What the parser has been fed since the connection was last between two requests; None if that is too much.
    cdef bytes fed
    # How many requests the ordinary path has begun to read or was handed, and how many of them it has answered.
    cdef long begun, answered, handed_over
    # What has arrived of a request with a known head, and what came behind the request that is being answered.
    cdef bytes partial, later
    cdef object learned
    cdef KnownHead head
    cdef QueryPlan plan
    # Who called last, unless the body named another database.
    cdef Caller known
    # The request that is being answered: who calls, its bytes, where its body is in them.
    cdef Caller caller
    cdef bytes data
    cdef Py_ssize_t body_at, body_size
    cdef bytes request_id, traceparent
    cdef tuple rate_headers
    cdef int64_t started_ns
    cdef Exchange exchange
    cdef WaitingQuery waiting
    cdef readonly double idle_since_s
    cdef public bint is_paused
    # Whether the transport may hold bytes that have not been sent.
    cdef bint is_dirty

    cdef bint is_free(self) noexcept
    cdef int feed_parser(self, bytes data) except -1
    cdef bint begin(self, bytes data) except -1
    cdef QueryPlan find_plan(self)
    cdef Caller find_caller(self, QueryPlan plan)
    cdef bint start(self) except -1
    cdef double timeout_s(self) except? -1
    cdef int run_waiting(self) except -1
    cdef bint run(self) except -1
    cdef bint take_permit(self) except -1
    cdef int finish(self) except -1
    cdef bytes more_headers(self)
    cdef int send(self) except -1
    cdef bint is_caller_known(self) except -1
    cdef int release(
        self, Caller caller, QueryPlan plan, connection, double leased_s, int transaction_status
    ) except -1
    cdef object as_request(self)
    cdef int hand_over(self) except -1
    cdef int hand_over_slot(self) except -1
    cdef int refuse(self) except -1
    cdef int give_up(self) except -1
    cdef int leave_queue(self) except -1
    cdef int go_on(self) except -1
