from plainsql_server.lane.plans.frame cimport Frame, Scalars
from plainsql_server.lane.plans.plan cimport QueryPlan, QueryPlans


# The most statements of a transaction in the lane, and so the most lists of parameters.
cdef enum:
    MAX_STEPS = 16


cdef struct Spans:
    int count
    Py_ssize_t[16] starts
    Py_ssize_t[16] ends


cdef class TransactionFrame(Frame):
    # The bytes before, between and after the lists of parameters.
    cdef readonly tuple parts
    # The parameters of each list.
    cdef list lists


cdef class TransactionPlan(QueryPlan):
    pass


cdef class TransactionPlans(QueryPlans):
    # The parameters of the request that is being read, list by list. They serve all frames.
    cdef list lists
