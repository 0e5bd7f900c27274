from libc.stdint cimport int64_t

from plainsql_server.lane.buffer cimport Buffer
from plainsql_server.lane.engine.exchange cimport Exchange
from plainsql_server.lane.engine.step cimport Step


cdef class Answer:
    # The bytes to send, valid until the next answer is written.
    cdef char *start
    cdef Py_ssize_t size
    # What the log line says of it.
    cdef int64_t total_us, queue_us, exec_us
    cdef bytes command
    cdef Py_ssize_t rows_bytes

    cdef Buffer body, head
    cdef dict tags, tags_without_rows
    cdef list server_headers
    cdef bytes prefix

    cdef int write(
        self, Exchange exchange, const char *request_id, Py_ssize_t id_size, list server_headers, bytes more_headers,
    ) except -1
    cdef int write_body(self, Exchange exchange, const char *request_id, Py_ssize_t id_size) except -1
    cdef int64_t write_result(self, Step step) except -1
    cdef int write_head(
        self, Py_ssize_t body_size, const char *request_id, Py_ssize_t id_size, list server_headers,
        bytes more_headers,
    ) except -1
    cdef int stop_clocks(self, Exchange exchange, int64_t now_ns, int64_t ended_ns) except -1
    cdef tuple read_tag(self, bytes tag, bint returns_rows)
