cdef class RowWriter:
    cdef list encoders, between
    cdef bytes null
    cdef int *kinds
    cdef int columns
    cdef bint as_csv
    cdef char *buffer
    cdef Py_ssize_t used, room

    cdef int write_row(self, void *pgresult, int row) except -1
    cdef int write_into(self, void *pgresult, int rows, char **start, Py_ssize_t *used, Py_ssize_t *room) except -1
    cdef int add_value(self, int column, const char *value, Py_ssize_t size) except -1
    cdef bint add_json_text(self, const char *value, Py_ssize_t size) except -1
    cdef void put_escaped(self, unsigned char byte) noexcept
    cdef bint add_csv_text(self, const char *value, Py_ssize_t size) except -1
    cdef bint add_time(self, const char *value, Py_ssize_t size, bint zoned) except -1
    cdef bint add_bytes(self, bytes piece) except -1
    cdef bint add(self, const char *piece, Py_ssize_t size) except -1
    cdef void put(self, unsigned char byte) noexcept
    cdef int reserve(self, Py_ssize_t size) except -1
