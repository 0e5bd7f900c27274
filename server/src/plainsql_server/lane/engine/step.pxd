from libc.stdint cimport int64_t

from plainsql_server.engine.encoding.row_writer cimport RowWriter
from plainsql_server.lane.buffer cimport Buffer
from plainsql_server.lane.plans.plan cimport StepPlan


cdef class Step:
    # The statement by its name in the backend, and how its parameters are checked; None if it has no parameters.
    cdef object prepared
    cdef bytes name
    cdef int parameters
    cdef unsigned int own_strings
    # How its rows were written the last time.
    cdef object encoding
    cdef long generation
    cdef RowWriter writer
    cdef bytes shape_json
    # Where its columns come from, if the rendering says so. They may come from another table the next time.
    cdef tuple origins
    # What has arrived: a result with rows, how many these are, the command tag, and when it ended.
    cdef object result
    cdef int rows
    cdef bint has_shape
    cdef bytes tag
    cdef int64_t ended_ns

    cdef bint can_run(self, StepPlan plan, connection, object by_sql) except -1
    cdef int use(self, prepared) except -1
    cdef bint send(self, void *pg, StepPlan plan) except -1
    cdef bint choose_writer(self, result, catalog, encoding) except -1
    cdef object known_rendering(self, result, catalog, encoding)
    cdef bytes shape(self)
    cdef int write_rows(self, Buffer out) except -1
    cdef int clear(self) except -1


cdef bint send_text(void *pg, bytes sql) noexcept
