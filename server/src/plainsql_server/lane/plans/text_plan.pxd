from plainsql_server.lane.plans.plan cimport QueryPlans


cdef class TextPlans(QueryPlans):
    pass
