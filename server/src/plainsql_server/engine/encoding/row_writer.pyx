# cython: language_level=3, boundscheck=False, wraparound=False
"""Encodes rows in C: the same bytes that `rows.py` produces, read directly from libpq's memory.

Handles the ordinary values of the ordinary types: text that is valid UTF-8, finite numbers, timestamps AD. For every
other value it calls the encoder from `values.py` or `csv_values.py`, so the special cases and their errors are in one
place. It does not know column names: the caller passes the bytes between the values.
"""

import ctypes
import sys

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcpy

from psycopg import pq

ctypedef char *(*GetValue)(void *, int, int) noexcept nogil
ctypedef int (*GetNumber)(void *, int, int) noexcept nogil

# psycopg's own copy of libpq, found through the module that is linked to it. These three functions are libpq's public
# API, and the pointer to a result is psycopg's public attribute `pgresult_ptr`.
_libpq = ctypes.CDLL(sys.modules[pq.PGresult.__module__].__file__)
cdef GetValue get_value = <GetValue><size_t>ctypes.cast(_libpq.PQgetvalue, ctypes.c_void_p).value
cdef GetNumber get_length = <GetNumber><size_t>ctypes.cast(_libpq.PQgetlength, ctypes.c_void_p).value
cdef GetNumber get_is_null = <GetNumber><size_t>ctypes.cast(_libpq.PQgetisnull, ctypes.c_void_p).value

# How to write the ordinary values of a column: the numbers that `values.kind_of` returns.
cdef enum Kind:
    CALL = 0
    AS_IS = 1
    TEXT = 2
    BOOL = 3
    NUMBER = 4
    TIMESTAMP = 5
    TIMESTAMPTZ = 6
    JSON = 7

cdef const char *HEX = b"0123456789abcdef"

# For each byte in a JSON string: 0 to write it as is, 1 to write \u00xx, or the letter after a backslash; and how many
# bytes the escape adds.
cdef unsigned char[256] json_escape
cdef unsigned char[256] json_extra


cdef int fill_tables() except -1:
    cdef int code
    for code in range(256):
        json_escape[code] = 1 if code < 0x20 else 0
        json_extra[code] = 5 if code < 0x20 else 0
    for code, letter in ((0x22, 0x22), (0x5C, 0x5C), (8, 0x62), (9, 0x74), (10, 0x6E), (12, 0x66), (13, 0x72)):
        json_escape[code], json_extra[code] = letter, 1
    return 0


fill_tables()


cdef class RowWriter:
    """Writes the rows of one result's chunks.

    `between` has one more piece than there are columns: the bytes before each value, and those after the last one.
    """

    def __cinit__(self, list between, list encoders, list kinds, bytes null, bint as_csv):
        if len(kinds) != len(encoders) or len(between) != len(encoders) + 1 or null is None:
            raise ValueError("pass a kind for each encoder, and one piece in `between` more than encoders")
        self.between, self.encoders, self.null, self.as_csv = between, encoders, null, as_csv
        self.columns = len(encoders)
        self.kinds = <int *>PyMem_Malloc((self.columns + 1) * sizeof(int))
        if self.kinds == NULL:
            raise MemoryError
        for column, kind in enumerate(kinds):
            self.kinds[column] = kind

    def __dealloc__(self):
        PyMem_Free(self.kinds)

    def write(self, result, int first, int end):
        """The rows of a psycopg result from `first` up to, but not including, `end`: one bytes object for each."""
        cdef void *pgresult = <void *><size_t>result.pgresult_ptr
        cdef int row
        cdef list rows = []
        # The buffer is not kept between calls: a writer lives as long as its statement is cached.
        self.room = 4096
        self.buffer = <char *>PyMem_Malloc(self.room)
        if self.buffer == NULL:
            raise MemoryError
        try:
            for row in range(first, min(end, <int>result.ntuples)):
                self.used = 0
                self.write_row(pgresult, row)
                rows.append(PyBytes_FromStringAndSize(self.buffer, self.used))
        finally:
            PyMem_Free(self.buffer)
            self.buffer = NULL
        return rows

    cdef int write_into(self, void *pgresult, int rows, char **start, Py_ssize_t *used, Py_ssize_t *room) except -1:
        """Writes the first rows with commas between them into the caller's memory, which must be PyMem's."""
        cdef int row
        self.buffer, self.used, self.room = start[0], used[0], room[0]
        try:
            for row in range(rows):
                if row:
                    self.add(b",", 1)
                self.write_row(pgresult, row)
        finally:
            start[0], used[0], room[0] = self.buffer, self.used, self.room
            self.buffer = NULL
        return 0

    cdef int write_row(self, void *pgresult, int row) except -1:
        cdef int column
        for column in range(self.columns):
            self.add_bytes(<bytes>self.between[column])
            if get_is_null(pgresult, row, column):
                self.add_bytes(self.null)
            else:
                self.add_value(column, get_value(pgresult, row, column), get_length(pgresult, row, column))
        self.add_bytes(<bytes>self.between[self.columns])
        return 0

    cdef int add_value(self, int column, const char *value, Py_ssize_t size) except -1:
        cdef int kind = self.kinds[column]
        cdef bint done = False
        if kind == AS_IS:
            done = self.add(value, size)
        elif kind == TEXT:
            done = self.add_csv_text(value, size) if self.as_csv else self.add_json_text(value, size)
        elif kind == NUMBER:
            done = is_finite(value, size) and self.add(value, size)
        elif kind == BOOL:
            done = self.add(b"true", 4) if value[0] == b"t" else self.add(b"false", 5)
        elif kind == TIMESTAMP or kind == TIMESTAMPTZ:
            done = self.add_time(value, size, kind == TIMESTAMPTZ)
        elif kind == JSON and not self.as_csv:
            done = is_plain_json(value, size) and self.add(value, size)
        if not done:
            self.add_bytes(self.encoders[column](PyBytes_FromStringAndSize(value, size)))
        return 0

    cdef bint add_json_text(self, const char *value, Py_ssize_t size) except -1:
        cdef unsigned char high = 0, byte
        cdef Py_ssize_t index, extra = 0
        for index in range(size):
            byte = <unsigned char>value[index]
            high |= byte
            extra += json_extra[byte]
        if high >= 0x80 and not is_utf8(value, size):
            return False
        self.reserve(size + extra + 2)
        self.put(0x22)
        if extra:
            for index in range(size):
                self.put_escaped(<unsigned char>value[index])
        else:
            memcpy(self.buffer + self.used, value, size)
            self.used += size
        self.put(0x22)
        return True

    cdef void put_escaped(self, unsigned char byte) noexcept:
        cdef unsigned char escape = json_escape[byte]
        if escape == 0:
            self.put(byte)
        elif escape == 1:
            memcpy(self.buffer + self.used, b"\\u00", 4)
            self.used += 4
            self.put(HEX[byte >> 4])
            self.put(HEX[byte & 15])
        else:
            self.put(0x5C)
            self.put(escape)

    cdef bint add_csv_text(self, const char *value, Py_ssize_t size) except -1:
        cdef unsigned char high = 0, byte
        cdef Py_ssize_t index, quotes = 0
        cdef bint special = size == 0 or is_space(value[0]) or is_space(value[size - 1])
        for index in range(size):
            byte = <unsigned char>value[index]
            high |= byte
            special |= byte == 0x22 or byte == 0x2C or byte == 10 or byte == 13
            quotes += byte == 0x22
        if high >= 0x80 and not is_utf8(value, size):
            return False
        if not special:
            return self.add(value, size)
        self.reserve(size + quotes + 2)
        self.put(0x22)
        for index in range(size):
            byte = <unsigned char>value[index]
            self.put(byte)
            if byte == 0x22:
                self.put(byte)
        self.put(0x22)
        return True

    cdef bint add_time(self, const char *value, Py_ssize_t size, bint zoned) except -1:
        # 2026-11-15 06:45:00.5+00. Infinity, years BC, and other zones or date styles are left to the encoder.
        cdef char *at
        cdef Py_ssize_t index
        if size < 19 or not is_digit(value[0]) or not is_digit(value[size - 1]):
            return False
        if zoned and (value[size - 3] != b"+" or value[size - 2] != b"0" or value[size - 1] != b"0"):
            return False
        for index in range(size):
            if not is_of_time(value[index]):
                return False
        self.reserve(size + 2)
        if not self.as_csv:
            self.put(0x22)
        at = self.buffer + self.used
        size = size - 3 if zoned else size
        memcpy(at, value, size)
        self.used += size
        at = <char *>memchr(at, 0x20, size)
        if at != NULL:
            at[0] = 0x54
        if zoned:
            self.put(0x5A)
        if not self.as_csv:
            self.put(0x22)
        return True

    cdef bint add_bytes(self, bytes piece) except -1:
        if piece is None:
            raise TypeError("an encoder returned None")
        return self.add(PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))

    cdef bint add(self, const char *piece, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.buffer + self.used, piece, size)
        self.used += size
        return True

    cdef void put(self, unsigned char byte) noexcept:
        self.buffer[self.used] = <char>byte
        self.used += 1

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef char *larger
        cdef Py_ssize_t wanted = self.used + size
        if wanted > self.room:
            wanted += wanted >> 3
            larger = <char *>PyMem_Realloc(self.buffer, wanted)
            if larger == NULL:
                raise MemoryError
            self.buffer, self.room = larger, wanted
        return 0


cdef bint is_digit(char byte) noexcept:
    return 0x30 <= byte <= 0x39


cdef bint is_of_time(char byte) noexcept:
    # Digits and [:. +-]: none of them can end a string, a field or a line.
    return is_digit(byte) or byte == 0x3A or byte == 0x2E or byte == 0x20 or byte == 0x2B or byte == 0x2D


cdef bint is_space(char byte) noexcept:
    return byte == 0x20 or 9 <= byte <= 13


cdef bint is_finite(const char *value, Py_ssize_t size) noexcept:
    # NaN, Infinity and -Infinity end with a letter; numbers end with a digit.
    return size > 0 and is_digit(value[size - 1])


cdef bint is_plain_json(const char *value, Py_ssize_t size) except -1:
    # No line breaks, and UTF-8. Text with a backslash after a non-ASCII byte may be in another encoding.
    cdef unsigned char byte, before = 0, high = 0
    cdef Py_ssize_t index
    for index in range(size):
        byte = <unsigned char>value[index]
        if byte == 10 or byte == 13 or (byte == 0x5C and before >= 0x80):
            return False
        high |= byte
        before = byte
    return high < 0x80 or is_utf8(value, size)


cdef bint is_utf8(const char *value, Py_ssize_t size) except -1:
    try:
        PyUnicode_DecodeUTF8(value, size, NULL)
    except UnicodeDecodeError:
        return False
    return True
