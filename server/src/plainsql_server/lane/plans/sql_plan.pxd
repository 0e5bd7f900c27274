from plainsql_server.lane.plans.plan cimport QueryPlans


cdef class SqlPlans(QueryPlans):
    # What the headers say of the form of the answer: whether values are PostgreSQL's text, and rows arrays.
    cdef object layout
    # The plans for each of these forms.
    cdef dict by_layout
