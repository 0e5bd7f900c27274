# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""From the bytes of a request to what it asks for and who calls.

    if intake.take_in(data, head): …    # intake.plan and intake.caller are known

Behind a proxy, each request on a connection may have another caller. Who calls is found out by the secret and the name
of the database in the request itself, and only if the same two have led to a caller before.

Nothing is done for a key that is not known. A body that is new must be decoded and classified, so that takes a permit
first, as it does on the ordinary path. The permit stays with the request, wherever it goes.
"""

from cpython.bytes cimport PyBytes_AS_STRING

from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.known_head cimport SECRET_SIZE
from plainsql_server.lane.permit cimport take_permit
from plainsql_server.lane.reasons cimport BODY, CALLER, OPTIONS, RATE_LIMIT
from plainsql_server.lane.route cimport LaneRoute, RouteHead

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
        self.note_spans(data, head)
        self.caller = self.known_caller()
        principal = self.known_principal() if self.caller is None else self.caller.principal
        if principal is None:
            return self.pass_on(CALLER)
        self.plan = self.find_plan()
        if self.plan is None and not self.learn_plan(principal):
            return False
        if self.caller is None or not self.is_for(self.caller, self.plan):
            self.caller = self.find_caller(self.plan)
            if self.caller is None:
                return self.pass_on(CALLER)
        self.head.caller = self.caller
        if self.plan.may_store_code and self.caller.place.without_code:
            return self.pass_on(OPTIONS)
        return True

    cdef int note_spans(self, bytes data, KnownHead head) except -1:
        self.data, self.body_at, self.body_size = data, head.body_at, head.body_size
        self.secret_at, self.database_at, self.database_size = head.secret_at, head.database_at, head.database_size
        self.request_id = data[head.id_at : head.id_at + head.id_size] if head.id_at >= 0 else None
        self.traceparent = data[head.trace_at : head.trace_at + 55] if head.trace_at >= 0 else None
        return 0

    cdef bytes secret(self):
        """The request's own secret."""
        return self.data[self.secret_at : self.secret_at + SECRET_SIZE]

    cdef bytes database(self, QueryPlan plan):
        """The name of the database in the request's own body, or in its head; None if there is none."""
        if plan is not None and plan.database is not None:
            return (<str>plan.database).encode()
        if self.database_at < 0:
            return None
        return self.data[self.database_at : self.database_at + self.database_size]

    cdef bint is_valid(self, Caller caller) noexcept:
        return caller.generation == self.lane.generation and self.started_ns * 1e-9 < caller.until_s

    cdef Caller known_caller(self):
        """A valid caller with the request's secret: the last one, or the one for the database in the head; or None."""
        cdef Caller caller = self.head.caller
        if caller is None or not caller.has_sent(PyBytes_AS_STRING(self.data) + self.secret_at):
            caller = self.head.route.callers.find(self.secret(), self.database(None))
        return caller if caller is not None and self.is_valid(caller) else None

    cdef object known_principal(self):
        """Who has the key, if that is cached and valid."""
        found = self.lane.principals.remembered(self.secret().decode())
        return None if found is None else found[0]

    cdef QueryPlan find_plan(self):
        """The plan of the body if it is known. The parameters are in the scalars of its steps then."""
        cdef const char *body = PyBytes_AS_STRING(self.data) + self.body_at
        cdef RouteHead head = self.head
        if head.plan is not None and head.plan.frame.holds(body, self.body_size, self.lane.scalars):
            return head.plan
        return self.remember(head.plans.find(body, self.body_size))

    cdef bint learn_plan(self, principal) except -1:
        """Makes a plan of a body that is new."""
        if not self.take_permit(principal):
            # The ordinary path waits for one, or refuses the request.
            return self.pass_on(RATE_LIMIT)
        self.plan = self.remember(self.head.plans.learn(self.data[self.body_at :]))
        return True if self.plan is not None else self.pass_on(BODY)

    cdef QueryPlan remember(self, QueryPlan plan):
        if plan is not None and self.body_size <= MAX_KEPT_BYTES:
            self.head.plan = plan
        return plan

    cdef bint is_for(self, Caller caller, QueryPlan plan) except -1:
        """Whether a caller with the request's secret has named the same database."""
        if plan.database is None:
            return caller.has_named(PyBytes_AS_STRING(self.data) + self.database_at, self.database_size)
        return caller.database is not None and caller.database == self.database(plan)

    cdef Caller find_caller(self, QueryPlan plan):
        """The caller; None if the ordinary path must look something up."""
        cdef LaneRoute route = self.head.route
        cdef bytes secret = self.secret(), database = self.database(plan)
        cdef Caller known = route.callers.find(secret, database), caller
        if known is not None and self.is_valid(known):
            return known
        caller = self.lane.find_caller(route, secret, database, known)
        if caller is not None:
            route.callers.add(caller, secret, database)
        elif known is not None:
            route.callers.drop(known)
        return caller

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

    cdef dict headers(self):
        """The headers of the request: what its head has in common with others, and the caller's own."""
        headers = {**self.head.learned.headers, b"authorization": b"Bearer " + self.secret()}
        if self.database_at >= 0:
            headers[b"x-database"] = self.database(None)
        return headers

    cdef object as_request(self):
        """The request, for the ordinary path, which owes an answer to it from now on."""
        request = LaneRequest(
            self.head.route.path, self.headers(), self.data[self.body_at :], self.request_id,
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
