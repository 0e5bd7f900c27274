from plainsql_server.lane.plan cimport QueryPlans


cdef class TextPlans(QueryPlans):
    pass
