from libc.stdint cimport int64_t

from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.exchange cimport Exchange, Progress
from plainsql_server.lane.lane cimport Waiting
from plainsql_server.lane.plan cimport QueryPlan
from plainsql_server.lane.wire cimport Wire


cdef class WaitingQuery(Waiting):
    cdef Track track


cdef class Track(Wire):
    # The request that is being answered: what it asks for, who calls, and where its body is in its bytes.
    cdef QueryPlan plan
    cdef Caller caller
    cdef Py_ssize_t body_at, body_size
    cdef bytes request_id, traceparent
    cdef bint has_permit
    cdef tuple rate_headers
    cdef int64_t started_ns
    # Where it stands: it waits for a slot, or has one, or has one and an exchange.
    cdef WaitingQuery waiting
    cdef bint has_slot
    cdef Exchange exchange

    cdef bint is_caller_known(self) except -1
    cdef QueryPlan find_plan(self)
    cdef Caller find_caller(self, QueryPlan plan)
    cdef bint run_or_wait(self) except -1
    cdef bint wait_for_slot(self) except -1
    cdef double timeout_s(self) except? -1
    cdef int run_waiting(self) except -1
    cdef bint can_still_run(self) except -1
    cdef bint run(self) except -1
    cdef bint take_permit(self) except -1
    cdef int state_left(self) noexcept
    cdef int finish(self) except -1
    cdef bytes more_headers(self)
    cdef int release(self, Caller caller, int state, connection, double leased_s, int transaction_status) except -1
    cdef object as_request(self)
    cdef int hand_over(self) except -1
    cdef int hand_over_slot(self) except -1
    cdef int begin_again(self) except -1
    cdef int refuse(self) except -1
    cdef int leave_lane(self) except -1
    cdef int leave_queue(self) except -1
