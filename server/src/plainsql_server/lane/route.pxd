from plainsql_server.lane.answer cimport Answer
from plainsql_server.lane.caller cimport Caller
from plainsql_server.lane.callers cimport Callers
from plainsql_server.lane.known_head cimport KnownHead
from plainsql_server.lane.plans.plan cimport QueryPlan, QueryPlans
from plainsql_server.lane.report cimport Report


cdef class LaneRoute:
    cdef readonly str path
    # The route of the ordinary path, which says who may call it and what body it takes.
    cdef object declared
    cdef QueryPlans plans
    cdef Answer answer
    cdef readonly Report report
    cdef Callers callers
    # Where its requests have their secret, and the media type of their bodies; None for any.
    cdef object read_secret, content_type


cdef class RouteHead:
    cdef object learned
    cdef KnownHead known
    cdef LaneRoute route
    cdef QueryPlans plans
    # Who called last with this head, and for what.
    cdef Caller caller
    cdef QueryPlan plan
