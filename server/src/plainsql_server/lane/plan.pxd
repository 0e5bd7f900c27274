from plainsql_server.lane.frame cimport Frame, Scalars


cdef class QueryPlan:
    cdef readonly str sql
    cdef readonly bytes text
    cdef readonly Frame frame
    cdef readonly object encoding, database, timeout_ms
    cdef readonly int chunk_rows, max_rows
    cdef readonly int state, state_without_code
    cdef readonly bint may_store_code, read_only


cdef class QueryPlans:
    cdef dict framed, whole, classified
    cdef Scalars scalars

    cdef QueryPlan find(self, const char *body, Py_ssize_t size)
    cdef QueryPlan learn(self, bytes body)
    cdef object classify(self, str sql)


cdef bytes without_numbers(bytes text)
