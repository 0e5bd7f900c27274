from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.engine.exchange cimport Exchange, Progress
from plainsql_server.lane.intake cimport Intake
from plainsql_server.lane.lane cimport Waiting


cdef class WaitingQuery(Waiting):
    cdef Track track


cdef class Track(Intake):
    # Where it stands: it waits for a slot, or has one, or has one and an exchange.
    cdef WaitingQuery waiting
    cdef bint has_slot
    cdef Exchange exchange

    cdef bint run_or_wait(self) except -1
    cdef bint wait_for_slot(self) except -1
    cdef int run_waiting(self) except -1
    cdef bint can_still_run(self) except -1
    cdef bint run(self) except -1
    cdef int state_left(self) noexcept
    cdef int finish(self) except -1
    cdef bytes more_headers(self)
    cdef int release(self, Caller caller, int state, connection, double leased_s, int transaction_status) except -1
    cdef int hand_over(self) except -1
    cdef int hand_over_slot(self) except -1
    cdef int begin_again(self) except -1
    cdef int drop_connection(self) except -1
    cdef int refuse(self, error) except -1
    cdef int leave_lane(self) except -1
    cdef int leave_queue(self) except -1
