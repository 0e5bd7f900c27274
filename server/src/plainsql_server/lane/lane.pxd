from libc.stdint cimport int64_t

from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.engine.exchange cimport Exchange
from plainsql_server.lane.plans.frame cimport Scalars
from plainsql_server.lane.reasons cimport Reasons
from plainsql_server.lane.request_ids cimport RequestIds
from plainsql_server.lane.route cimport LaneRoute


cdef enum Forced:
    AFTER_SENDING = 1
    AT_FIRST_ARRIVAL = 2
    WHEN_DONE = 3


cdef class Waiting:
    # Until when it may wait.
    cdef int64_t until_ns
    cdef bint is_served
    cdef Lane lane

    cdef int run(self) except -1
    cdef int expire(self) except -1
    cdef int abort(self) except -1


cdef class Lane:
    cdef object principals, databases, pools, permits, readiness, loop, learned_heads
    # By path.
    cdef dict routes
    cdef Scalars scalars
    cdef RequestIds request_ids
    cdef int epoll
    # Exchanges by file descriptor. A descriptor may be used again by another connection.
    cdef list exchanges
    cdef list ready
    cdef dict waiting
    cdef long generation
    cdef bint is_sweeping, is_flushing, is_finishing, is_scheduled
    # Requests that were begun, that took the ordinary path from their start, and that were handed over.
    cdef readonly long begun
    cdef readonly Reasons passed, handed_over
    # For tests: after which step every statement is handed over.
    cdef public int forced

    cdef Caller find_caller(self, LaneRoute route, bytes secret, bytes database, Caller known)
    cdef Exchange exchange_of(self, connection)
    cdef int enqueue(self, Waiting waiting, Caller caller, double deadline_s) except -1
    cdef int sweep_soon(self) except -1
    cdef int flush_soon(self) except -1
    cdef int read_one(self, Exchange exchange) except -1
    cdef int run_ready(self) except -1
    cdef int report_failure(self, error) except -1
    cdef int end_slow(self, Exchange exchange) except -1
    cdef int abort(self, Exchange exchange) except -1
    cdef int expire(self, Waiting waiting) except -1
