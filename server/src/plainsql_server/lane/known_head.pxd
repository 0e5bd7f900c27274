cdef enum Match:
    UNKNOWN = 0
    INCOMPLETE = 1
    COMPLETE = 2


cdef enum:
    # As in `core/credential.py`.
    SECRET_SIZE = 44


cdef class KnownHead:
    # The bytes before, between and after the spans, and the kinds of the spans.
    cdef tuple parts
    cdef int[5] kinds
    cdef int spans
    # Where the last match found the body, the secret, the database, the request id and the traceparent. -1 or 0 where
    # there is none.
    cdef readonly Py_ssize_t body_at, body_size, secret_at, database_at, database_size, id_at, id_size, trace_at

    cdef Match read(self, const char *text, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_span(self, int kind, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_length(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_secret(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_database(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_id(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_traceparent(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept
