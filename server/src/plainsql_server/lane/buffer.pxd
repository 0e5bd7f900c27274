from libc.stdint cimport int64_t


cdef class Buffer:
    cdef char *start
    cdef Py_ssize_t used, room

    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int add(self, const char *part, Py_ssize_t size) except -1
    cdef int add_text(self, const char *part) except -1
    cdef int add_bytes(self, bytes part) except -1
    cdef int add_number(self, int64_t value) except -1
    cdef int add_thousandths(self, int64_t value) except -1
    cdef int add_fraction(self, int64_t value, int digits) except -1
    cdef int shrink(self, Py_ssize_t room) except -1
