cdef class Scalars:
    # The values as libpq takes them: texts that end with a zero byte, and NULL for null. Valid until the next `read`.
    cdef const char **values
    cdef char *texts
    cdef Py_ssize_t room
    cdef int count
    # A bit for each value that is a JSON string.
    cdef unsigned int strings

    cdef bint read(self, const char *text, Py_ssize_t size) except -1
    cdef Py_ssize_t read_list(self, const char *text, Py_ssize_t size) except -2
    cdef void keep(self, const char *text, Py_ssize_t size, Py_ssize_t *used) noexcept


cdef class Frame:
    cdef readonly bytes before, after
    # Whether the body has no parameters: then it is all in `before`.
    cdef readonly bint is_whole

    cdef bytes key(self)
    cdef bint holds(self, const char *body, Py_ssize_t size, Scalars scalars) except -1
