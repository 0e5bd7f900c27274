# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Request ids, as `core/ids.py` makes them: a prefix, 48 bits of milliseconds, then 80 random bits.

    ids = RequestIds(); ids.new()
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from plainsql_server.lane.clocks cimport wall_us

cdef const char *DIGITS = b"0123456789abcdef"
cdef Py_ssize_t RANDOM_BYTES = 10
# So many ids have random bytes from one system call.
cdef Py_ssize_t BATCH = 400


cdef class RequestIds:
    """The request ids of one process. A fork must not use its parent's: make one after the fork."""

    def __init__(self):
        self.random = b""

    cdef bytes new(self):
        cdef bytes made = PyBytes_FromStringAndSize(NULL, 36)
        cdef char *text = PyBytes_AS_STRING(made)
        cdef int64_t now_ms = wall_us() // 1000
        cdef int index
        if self.used == PyBytes_GET_SIZE(self.random):
            self.random, self.used = os.urandom(BATCH * RANDOM_BYTES), 0
        memcpy(text, b"req_", 4)
        for index in range(6):
            write_hex(text + 4 + 2 * index, <uint8_t>(now_ms >> 8 * (5 - index)))
        for index in range(RANDOM_BYTES):
            write_hex(text + 16 + 2 * index, <uint8_t>PyBytes_AS_STRING(self.random)[self.used + index])
        self.used += RANDOM_BYTES
        return made

    def next(self):
        """`new`, for tests."""
        return self.new()


cdef void write_hex(char *text, uint8_t value) noexcept:
    text[0], text[1] = DIGITS[value >> 4], DIGITS[value & 15]
