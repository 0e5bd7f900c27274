# cython: language_level=3, boundscheck=False, wraparound=False
"""Encodes rows in C: the same bytes that `rows.py` produces, read directly from libpq's memory.

Handles the ordinary values of the ordinary types: text that is valid UTF-8, finite numbers, timestamps AD. For every
other value it calls the encoder from `values.py` or `csv_values.py`, so the special cases and their errors are in one
place. It does not know column names: the caller passes the bytes between the values.

`write_long` may run on a thread, also while the event loop uses the writer. It holds the GIL only to call an encoder or
to get memory.
"""

import ctypes
import sys

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.string cimport memchr, memcpy

from psycopg import pq

cdef extern from "Python.h":
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *, Py_ssize_t) except NULL
    int resize_bytes "_PyBytes_Resize" (PyObject **, Py_ssize_t) except -1
    char *start_of "PyBytes_AS_STRING" (PyObject *) nogil
    Py_ssize_t size_of "PyBytes_GET_SIZE" (PyObject *) nogil
    void Py_INCREF(PyObject *)
    void Py_XDECREF(PyObject *)

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

# Whether JSON can be written as it is, has line breaks to replace, or must be looked at by its encoder.
cdef enum JsonForm:
    PLAIN
    BROKEN
    UNCERTAIN

# The first size of the memory that rows are written into.
cdef enum:
    FIRST_ROOM = 4096

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
        self.between, self.encoders, self.null, self.as_csv = tuple(between), encoders, null, as_csv
        self.columns = len(encoders)
        self.kinds = <int *>PyMem_Malloc((self.columns + 1) * sizeof(int))
        self.pieces = <PyObject **>PyMem_Malloc((self.columns + 1) * sizeof(PyObject *))
        if self.kinds == NULL or self.pieces == NULL:
            raise MemoryError
        for column, kind in enumerate(kinds):
            self.kinds[column] = kind
        for column, piece in enumerate(self.between):
            if not PyBytes_CheckExact(piece):
                raise TypeError("`between` must be bytes")
            # The tuple keeps it alive.
            self.pieces[column] = <PyObject *>piece

    def __dealloc__(self):
        PyMem_Free(self.kinds)
        PyMem_Free(self.pieces)

    def write(self, result, int first, int end):
        """The rows of a psycopg result from `first` up to, but not including, `end`: one bytes object for each."""
        cdef void *pgresult = <void *><size_t>result.pgresult_ptr
        cdef int row
        cdef list rows = []
        cdef Output out
        # It is not kept between calls: a writer lives as long as its statement is cached.
        out.holder, out.used, out.room = NULL, 0, FIRST_ROOM
        out.start = <char *>PyMem_Malloc(FIRST_ROOM)
        if out.start == NULL:
            raise MemoryError
        try:
            for row in range(first, min(end, <int>result.ntuples)):
                out.used = 0
                self.write_row(&out, pgresult, row)
                rows.append(PyBytes_FromStringAndSize(out.start, out.used))
        finally:
            PyMem_Free(out.start)
        return rows

    def write_long(self, result, int first, int end):
        """Like `write`, for long rows: releases the GIL, and writes each row where it stays, without a copy."""
        cdef void *pgresult = <void *><size_t>result.pgresult_ptr
        return [self.long_row(pgresult, row) for row in range(first, min(end, <int>result.ntuples))]

    cdef bytes long_row(self, void *pgresult, int row):
        cdef Output out
        out.holder, out.used, out.room = new_bytes(NULL, FIRST_ROOM), 0, FIRST_ROOM
        out.start = start_of(out.holder)
        try:
            with nogil:
                self.write_row(&out, pgresult, row)
            resize_bytes(&out.holder, out.used)
            return <bytes>out.holder
        finally:
            Py_XDECREF(out.holder)

    cdef int write_into(self, void *pgresult, int rows, char **start, Py_ssize_t *used, Py_ssize_t *room) except -1:
        """Writes the first rows with commas between them into the caller's memory, which must be PyMem's."""
        cdef int row
        cdef Output out
        out.holder, out.start, out.used, out.room = NULL, start[0], used[0], room[0]
        try:
            for row in range(rows):
                if row:
                    add(&out, b",", 1)
                self.write_row(&out, pgresult, row)
        finally:
            start[0], used[0], room[0] = out.start, out.used, out.room
        return 0

    cdef int write_row(self, Output *out, void *pgresult, int row) except -1 nogil:
        cdef int column
        for column in range(self.columns):
            add(out, start_of(self.pieces[column]), size_of(self.pieces[column]))
            if get_is_null(pgresult, row, column):
                add(out, start_of(<PyObject *>self.null), size_of(<PyObject *>self.null))
            else:
                self.add_value(out, column, get_value(pgresult, row, column), get_length(pgresult, row, column))
        add(out, start_of(self.pieces[self.columns]), size_of(self.pieces[self.columns]))
        return 0

    cdef int add_value(self, Output *out, int column, const char *value, Py_ssize_t size) except -1 nogil:
        cdef int kind = self.kinds[column]
        cdef bint done = False
        cdef JsonForm form
        if kind == AS_IS:
            done = add(out, value, size)
        elif kind == TEXT:
            done = add_csv_text(out, value, size) if self.as_csv else add_json_text(out, value, size)
        elif kind == NUMBER:
            done = is_finite(value, size) and add(out, value, size)
        elif kind == BOOL:
            done = add(out, b"true", 4) if value[0] == b"t" else add(out, b"false", 5)
        elif kind == TIMESTAMP or kind == TIMESTAMPTZ:
            done = add_time(out, value, size, kind == TIMESTAMPTZ, self.as_csv)
        elif kind == JSON and not self.as_csv:
            form = form_of_json(value, size)
            done = form != UNCERTAIN and add(out, value, size)
            if form == BROKEN:
                blank_line_breaks(out.start + out.used - size, size)
        if not done:
            self.add_encoded(out, column, value, size)
        return 0

    cdef int add_encoded(self, Output *out, int column, const char *value, Py_ssize_t size) except -1 nogil:
        """Adds what the column's encoder makes of a value."""
        cdef PyObject *encoded
        with gil:
            encoded = self.encoded(column, value, size)
        try:
            add(out, start_of(encoded), size_of(encoded))
        finally:
            with gil:
                Py_XDECREF(encoded)
        return 0

    cdef PyObject *encoded(self, int column, const char *value, Py_ssize_t size) except NULL:
        cdef bytes made = self.encoders[column](PyBytes_FromStringAndSize(value, size))
        if made is None:
            raise TypeError("an encoder returned None")
        Py_INCREF(<PyObject *>made)
        return <PyObject *>made


cdef bint add_json_text(Output *out, const char *value, Py_ssize_t size) except -1 nogil:
    cdef unsigned char high = 0, byte
    cdef Py_ssize_t index, extra = 0
    for index in range(size):
        byte = <unsigned char>value[index]
        high |= byte
        extra += json_extra[byte]
    if high >= 0x80 and not is_utf8(value, size):
        return False
    reserve(out, size + extra + 2)
    put(out, 0x22)
    if extra:
        for index in range(size):
            put_escaped(out, <unsigned char>value[index])
    else:
        memcpy(out.start + out.used, value, size)
        out.used += size
    put(out, 0x22)
    return True


cdef void put_escaped(Output *out, unsigned char byte) noexcept nogil:
    cdef unsigned char escape = json_escape[byte]
    if escape == 0:
        put(out, byte)
    elif escape == 1:
        memcpy(out.start + out.used, b"\\u00", 4)
        out.used += 4
        put(out, HEX[byte >> 4])
        put(out, HEX[byte & 15])
    else:
        put(out, 0x5C)
        put(out, escape)


cdef bint add_csv_text(Output *out, const char *value, Py_ssize_t size) except -1 nogil:
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
        return add(out, value, size)
    reserve(out, size + quotes + 2)
    put(out, 0x22)
    for index in range(size):
        byte = <unsigned char>value[index]
        put(out, byte)
        if byte == 0x22:
            put(out, byte)
    put(out, 0x22)
    return True


cdef bint add_time(Output *out, const char *value, Py_ssize_t size, bint zoned, bint as_csv) except -1 nogil:
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
    reserve(out, size + 2)
    if not as_csv:
        put(out, 0x22)
    at = out.start + out.used
    size = size - 3 if zoned else size
    memcpy(at, value, size)
    out.used += size
    at = <char *>memchr(at, 0x20, size)
    if at != NULL:
        at[0] = 0x54
    if zoned:
        put(out, 0x5A)
    if not as_csv:
        put(out, 0x22)
    return True


cdef bint add(Output *out, const char *piece, Py_ssize_t size) except -1 nogil:
    reserve(out, size)
    memcpy(out.start + out.used, piece, size)
    out.used += size
    return True


cdef void put(Output *out, unsigned char byte) noexcept nogil:
    out.start[out.used] = <char>byte
    out.used += 1


cdef int reserve(Output *out, Py_ssize_t size) except -1 nogil:
    if out.used + size > out.room:
        with gil:
            grow(out, out.used + size)
    return 0


cdef int grow(Output *out, Py_ssize_t wanted) except -1:
    cdef char *larger
    wanted += wanted >> 3
    if out.holder != NULL:
        resize_bytes(&out.holder, wanted)
        larger = start_of(out.holder)
    else:
        larger = <char *>PyMem_Realloc(out.start, wanted)
        if larger == NULL:
            raise MemoryError
    out.start, out.room = larger, wanted
    return 0


cdef bint is_digit(char byte) noexcept nogil:
    return 0x30 <= byte <= 0x39


cdef bint is_of_time(char byte) noexcept nogil:
    # Digits and [:. +-]: none of them can end a string, a field or a line.
    return is_digit(byte) or byte == 0x3A or byte == 0x2E or byte == 0x20 or byte == 0x2B or byte == 0x2D


cdef bint is_space(char byte) noexcept nogil:
    return byte == 0x20 or 9 <= byte <= 13


cdef bint is_finite(const char *value, Py_ssize_t size) noexcept nogil:
    # NaN, Infinity and -Infinity end with a letter; numbers end with a digit.
    return size > 0 and is_digit(value[size - 1])


cdef JsonForm form_of_json(const char *value, Py_ssize_t size) noexcept nogil:
    # Text with a backslash after a non-ASCII byte may be in another encoding.
    cdef unsigned char byte, before = 0, high = 0
    cdef Py_ssize_t index
    cdef bint is_broken = False
    for index in range(size):
        byte = <unsigned char>value[index]
        if byte == 0x5C and before >= 0x80:
            return UNCERTAIN
        is_broken |= byte == 10 or byte == 13
        high |= byte
        before = byte
    if high >= 0x80 and not is_utf8(value, size):
        return UNCERTAIN
    return BROKEN if is_broken else PLAIN


cdef void blank_line_breaks(char *text, Py_ssize_t size) noexcept nogil:
    # Between JSON's tokens, where alone they can be, a blank means the same.
    cdef Py_ssize_t index
    for index in range(size):
        if text[index] == 10 or text[index] == 13:
            text[index] = 0x20


cdef bint is_utf8(const char *value, Py_ssize_t size) noexcept nogil:
    # As Python decodes it: the shortest form only, and no surrogates.
    cdef const unsigned char *at = <const unsigned char *>value, *end = at + size
    cdef unsigned char lead, lowest, highest
    cdef int more
    while at < end:
        lead = at[0]
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        lowest = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        highest = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if end - at < more or at[0] < lowest or at[0] > highest:
            return False
        if (more > 1 and at[1] & 0xC0 != 0x80) or (more > 2 and at[2] & 0xC0 != 0x80):
            return False
        at += more
    return True
