from libc.stdint cimport int64_t


cdef class Caller:
    cdef readonly object principal, place, pool, limits
    cdef object admission, queue, leader, catalog
    cdef list idle
    # Until when both lookups are valid without a change notification, by the monotonic clock, and the generation of
    # notifications that they belong to.
    cdef double until_s
    cdef long generation
    cdef bint without_code, has_rate_limit, is_read_only
    # The end of its log lines: from the error code on, without the trace.
    cdef bytes log_names
    # What leads to it: the secret, and the database that the request names, as they are sent. `callers.pyx` sets them.
    cdef bytes secret, database
    # What it has used since the last report, and when its last request began, by the wall clock.
    cdef int64_t requests, rows, engine_us, size_bytes, used_us

    cdef bint has_sent(self, const char *secret) noexcept
    cdef bint has_named(self, const char *database, Py_ssize_t size) noexcept


cdef Caller new_caller(principal, place, pool)
