# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bytes that grow: what the lane writes answers and log lines into.

    out = Buffer(); out.add_text(b'"row_count":'); out.add_number(rows)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, strlen

cdef Py_ssize_t FIRST_ROOM = 4096


cdef class Buffer:
    """Bytes that grow. `used` may be set back to write over what is there."""

    def __cinit__(self):
        self.room = FIRST_ROOM
        self.start = <char *>PyMem_Malloc(self.room)
        if self.start == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.start)

    def __bytes__(self):
        return PyBytes_FromStringAndSize(self.start, self.used)

    def write(self, bytes part not None):
        """Adds bytes."""
        self.add_bytes(part)

    def write_number(self, int64_t value):
        """Adds a whole number in decimal digits."""
        self.add_number(value)

    def write_thousandths(self, int64_t value):
        """Adds a thousandth of a number that is not negative, with three decimals."""
        self.add_thousandths(value)

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t wanted = self.used + size
        cdef char *larger
        if wanted > self.room:
            wanted += wanted >> 1
            larger = <char *>PyMem_Realloc(self.start, wanted)
            if larger == NULL:
                raise MemoryError
            self.start, self.room = larger, wanted
        return 0

    cdef int add(self, const char *part, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.start + self.used, part, size)
        self.used += size
        return 0

    cdef int add_text(self, const char *part) except -1:
        return self.add(part, strlen(part))

    cdef int add_bytes(self, bytes part) except -1:
        return self.add(PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))

    cdef int add_number(self, int64_t value) except -1:
        cdef char[24] digits
        cdef int at = 24
        # The smallest number has no positive counterpart among the signed ones.
        cdef uint64_t rest = <uint64_t>value if value >= 0 else ~<uint64_t>value + 1
        while True:
            at -= 1
            digits[at] = <char>(48 + rest % 10)
            rest //= 10
            if rest == 0:
                break
        if value < 0:
            at -= 1
            digits[at] = 45
        return self.add(digits + at, 24 - at)

    cdef int add_thousandths(self, int64_t value) except -1:
        self.add_number(value // 1000)
        self.add(b".", 1)
        return self.add_fraction(value % 1000, 3)

    cdef int add_fraction(self, int64_t value, int digits) except -1:
        """Adds so many digits of a number, with zeros before it."""
        cdef int index
        self.reserve(digits)
        for index in range(digits):
            self.start[self.used + digits - 1 - index] = <char>(48 + value % 10)
            value //= 10
        self.used += digits
        return 0

    cdef int shrink(self, Py_ssize_t room) except -1:
        """Empties the buffer, and gives memory back if one large answer has made it larger than `room`."""
        cdef char *smaller
        self.used = 0
        if self.room > room:
            smaller = <char *>PyMem_Realloc(self.start, room)
            if smaller == NULL:
                raise MemoryError
            self.start, self.room = smaller, room
        return 0
