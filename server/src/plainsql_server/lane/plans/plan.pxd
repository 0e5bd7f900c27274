from plainsql_server.lane.plans.frame cimport Frame, Scalars


cdef class StepPlan:
    cdef readonly str sql
    cdef readonly bytes text
    # Its parameters, as the body that was read last has them; None if it has none.
    cdef readonly Scalars scalars
    # Whether a string is PostgreSQL's text for every type.
    cdef bint takes_text


cdef class QueryPlan:
    # Its statements: one, or those of a transaction.
    cdef readonly list steps
    cdef readonly Frame frame
    cdef readonly object encoding, database, timeout_ms
    cdef readonly int chunk_rows, max_rows
    cdef readonly int state, state_without_code
    cdef readonly bint may_store_code, read_only
    cdef readonly bint is_transaction

    cdef int set_options(self, sent, encoding, database, classifications) except -1
    cdef int limit_ms(self, limits) except -1


cdef class PlanTable:
    cdef dict plans
    cdef readonly Py_ssize_t key_bytes

    cdef QueryPlan find(self, bytes key)
    cdef int add(self, bytes key, QueryPlan plan) except -1


cdef class QueryPlans:
    cdef readonly PlanTable framed, whole
    cdef dict classified
    cdef Scalars scalars
    # What the keys of its plans begin with, if others have theirs in the same tables; else None.
    cdef bytes form

    cdef QueryPlan find(self, const char *body, Py_ssize_t size)
    cdef QueryPlan learn(self, bytes body)
    cdef QueryPlans of_head(self, headers)
    cdef object decode(self, bytes body)
    cdef object encoding_of(self, sent)
    cdef bint takes_text(self) noexcept
    cdef Frame frame_of(self, bytes body, sent)
    cdef bint has_parameter(self, bytes before, bytes parameter, bytes after, sent) except -1
    cdef QueryPlan keep(self, QueryPlan plan)
    cdef bytes key_in_table(self, bytes key)
    cdef object classify(self, str sql)


cdef bytes without_numbers(bytes text)
