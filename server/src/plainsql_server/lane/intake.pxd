from libc.stdint cimport int64_t

from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.known_head cimport KnownHead
from plainsql_server.lane.permit cimport LanePermit
from plainsql_server.lane.plans.plan cimport QueryPlan
from plainsql_server.lane.wire cimport Wire


cdef class Intake(Wire):
    # The request that is being answered: what it asks for, who calls, and where its body is in its bytes.
    cdef QueryPlan plan
    cdef Caller caller
    cdef Py_ssize_t body_at, body_size
    # Where its secret is, and the database that its head names. Others may have used the head since.
    cdef Py_ssize_t secret_at, database_at, database_size
    cdef bytes request_id, traceparent
    cdef LanePermit permit
    cdef int64_t started_ns

    cdef bint take_in(self, bytes data, KnownHead head) except -1
    cdef int note_spans(self, bytes data, KnownHead head) except -1
    cdef bytes secret(self)
    cdef bytes database(self, QueryPlan plan)
    cdef bint is_valid(self, Caller caller) noexcept
    cdef Caller known_caller(self)
    cdef object known_principal(self)
    cdef QueryPlan find_plan(self)
    cdef bint learn_plan(self, principal) except -1
    cdef QueryPlan remember(self, QueryPlan plan)
    cdef bint is_for(self, Caller caller, QueryPlan plan) except -1
    cdef Caller find_caller(self, QueryPlan plan)
    cdef bint take_permit(self, principal) except -1
    cdef double timeout_s(self) except? -1
    cdef bint is_held(self) except -1
    cdef dict headers(self)
    cdef object as_request(self)
    cdef object admitted(self)
