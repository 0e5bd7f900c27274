from libc.stdint cimport int64_t


cdef enum Reason:
    # Why a request took the ordinary path from its start.
    HEAD
    BODY
    CALLER
    OPTIONS
    CONNECTION
    STATEMENT
    SESSION
    RATE_LIMIT
    OVERLOAD
    UNREAD
    PIPELINED
    # Why one was handed over later. Some are reasons for both.
    ERROR
    LARGE
    TYPE
    SLOW
    DEADLINE
    CLIENT_LOST
    CHANGED
    NOTICE
    STOPPING
    TEST
    REASON_COUNT


cdef class Reasons:
    cdef int64_t[32] counts
