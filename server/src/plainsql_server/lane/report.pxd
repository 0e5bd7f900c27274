from libc.stdint cimport int64_t

from plainsql_server.lane.buffer cimport Buffer
from plainsql_server.lane.caller cimport Caller


cdef class Durations:
    cdef int64_t[32] counts
    cdef int64_t sum_us

    cdef void add(self, int64_t duration_us) noexcept


cdef class Report:
    cdef readonly str route
    cdef object log, metrics, tally
    cdef Buffer lines
    cdef Durations total, queue, engine
    cdef int64_t finished, rows
    cdef list callers
    cdef int64_t second
    cdef bytes second_text

    cdef int add(
        self, Caller caller, const char *request_id, Py_ssize_t id_size, const char *trace_id, int64_t total_us,
        int64_t queue_us, int64_t exec_us, int rows, bytes command, Py_ssize_t size_bytes,
    ) except -1
    cdef int add_time(self, int64_t now_us) except -1
