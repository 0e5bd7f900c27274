# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""From the bytes of a request to what it asks for and who calls.

    if intake.take_in(data, head): …    # intake.plan and intake.caller are known

Nothing is done for a key that is not known. A body that is new must be decoded and classified, so that takes a permit
first, as it does on the ordinary path. The permit stays with the request, wherever it goes.
"""

from cpython.bytes cimport PyBytes_AS_STRING

from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.permit cimport take_permit
from plainsql_server.lane.reasons cimport BODY, CALLER, OPTIONS, RATE_LIMIT
from plainsql_server.lane.route cimport RouteHead

from plainsql_server.core.clock import Deadline
from plainsql_server.lane.handover import Admitted, LaneRequest
from plainsql_server.limits.tiers import TIERS

# A connection keeps the plan of its last request only if the body was small, because there are many connections.
cdef Py_ssize_t MAX_KEPT_BYTES = 1024


cdef class Intake(Wire):
    """The request of one HTTP connection that is being answered."""

    cdef bint take_in(self, bytes data, KnownHead head) except -1:
        """Finds out what a request asks for, and who calls; False if the ordinary path must do that."""
        self.started_ns = monotonic_ns()
        self.permit = None
        principal = self.known_principal()
        if principal is None:
            return self.pass_on(CALLER)
        self.data, self.body_at, self.body_size = data, head.body_at, head.body_size
        self.request_id = data[head.id_at : head.id_at + head.id_size] if head.id_at >= 0 else None
        self.traceparent = data[head.trace_at : head.trace_at + 55] if head.trace_at >= 0 else None
        self.plan = self.find_plan()
        if self.plan is None and not self.learn_plan(principal):
            return False
        self.caller = self.find_caller(self.plan)
        if self.caller is None:
            return self.pass_on(CALLER)
        if self.plan.may_store_code and self.caller.place.without_code:
            return self.pass_on(OPTIONS)
        return True

    cdef object known_principal(self):
        """Who has the key, if that is cached and valid."""
        cdef Caller known = self.head.caller
        if known is not None and known.generation == self.lane.generation and self.started_ns * 1e-9 < known.until_s:
            return known.principal
        found = self.lane.principals.remembered(self.head.learned.secret)
        return None if found is None else found[0]

    cdef QueryPlan find_plan(self):
        """The plan of the body if it is known. The parameters are in the scalars of its steps then."""
        cdef const char *body = PyBytes_AS_STRING(self.data) + self.body_at
        cdef RouteHead head = self.head
        if head.plan is not None and head.plan.frame.holds(body, self.body_size, self.lane.scalars):
            return head.plan
        return self.remember(head.route.plans.find(body, self.body_size))

    cdef bint learn_plan(self, principal) except -1:
        """Makes a plan of a body that is new."""
        if not self.take_permit(principal):
            # The ordinary path waits for one, or refuses the request.
            return self.pass_on(RATE_LIMIT)
        self.plan = self.remember(self.head.route.plans.learn(self.data[self.body_at :]))
        return True if self.plan is not None else self.pass_on(BODY)

    cdef QueryPlan remember(self, QueryPlan plan):
        if plan is not None and self.body_size <= MAX_KEPT_BYTES:
            self.head.plan = plan
        return plan

    cdef Caller find_caller(self, QueryPlan plan):
        """The caller; None if the ordinary path must look something up."""
        cdef RouteHead head = self.head
        cdef Caller known = head.caller
        learned = head.learned
        if plan.database is not None and plan.database != learned.database:
            return self.lane.find_caller(head.route, learned.secret, plan.database, None)
        if known is None or known.generation != self.lane.generation or self.started_ns * 1e-9 >= known.until_s:
            head.caller = known = self.lane.find_caller(head.route, learned.secret, learned.database, known)
        return known

    cdef bint take_permit(self, principal) except -1:
        """Takes a permit of the organization's, if it needs one and the request has none."""
        limit = TIERS[principal.tier].requests_per_minute
        if limit is None or self.permit is not None:
            return True
        self.permit = take_permit(self.lane.permits, principal, limit)
        return self.permit is not None

    cdef double timeout_s(self) except? -1:
        cdef double limit_s = self.plan.limit_ms(self.caller.limits) / 1000.0
        return limit_s if self.plan.timeout_ms is None else min(limit_s, self.plan.timeout_ms / 1000.0)

    cdef bint is_held(self) except -1:
        """Reads the parameters again: other requests have used the scalars since."""
        return self.plan.frame.holds(PyBytes_AS_STRING(self.data) + self.body_at, self.body_size, self.lane.scalars)

    cdef object as_request(self):
        """The request, for the ordinary path, which owes an answer to it from now on."""
        request = LaneRequest(
            self.head.route.path, self.head.learned.headers, self.data[self.body_at :], self.request_id,
            self.traceparent, None if self.permit is None else self.permit.headers(), self.started_ns * 1e-9,
        )
        self.is_dirty = True
        self.handed_over += 1
        self.begun += 1
        self.lane.handed_over.counts[<int>self.reason] += 1
        self.data = self.plan = None
        return request

    cdef object admitted(self):
        """What the ordinary path must know of a request that has its slot."""
        cdef Caller caller = self.caller
        deadline = Deadline(self.started_ns * 1e-9 + self.timeout_s())
        return Admitted(caller.principal, caller.place, caller.pool, deadline)
