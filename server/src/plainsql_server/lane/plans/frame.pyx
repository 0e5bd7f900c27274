# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The body of a request that msgspec has decoded before, up to its parameters.

    frame = Frame(b'{"sql":"select $1","params":[', b"]}")
    frame.holds(body, size, scalars)    # True: scalars.values are the parameters

Between the ends of a frame only JSON scalars in their plainest form may stand: numbers, booleans, null and strings
without escapes. What makes a frame has proven that these are the parameters and change nothing else; see
`plan.pyx`. Any other body takes the ordinary path, so the rules of JSON stay in one place.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcmp, memcpy

# Statements with more parameters, or larger ones, take the ordinary path.
MAX_SCALARS = 32
MAX_SCALARS_BYTES = 8 * 1024
cdef int max_scalars = MAX_SCALARS
cdef Py_ssize_t max_scalars_bytes = MAX_SCALARS_BYTES


cdef class Scalars:
    """The parameters of the request that is being read. One object serves all connections of a process."""

    def __cinit__(self):
        # Each value takes at least one byte in the body, which leaves room for the zero byte at its end.
        self.room = max_scalars_bytes + max_scalars
        self.texts = <char *>PyMem_Malloc(self.room)
        self.values = <const char **>PyMem_Malloc(max_scalars * sizeof(const char *))
        if self.texts == NULL or self.values == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.texts)
        PyMem_Free(<void *>self.values)

    def parse(self, bytes text not None):
        """The texts of the scalars in a list without its brackets; None if the ordinary path must read it."""
        if not self.read(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)):
            return None
        return self.texts_read()

    def texts_read(self):
        """The texts of the scalars that were read last."""
        return [None if self.values[index] == NULL else <bytes>self.values[index] for index in range(self.count)]

    cdef bint read(self, const char *text, Py_ssize_t size) except -1:
        return size <= max_scalars_bytes and self.read_list(text, size) == size

    cdef Py_ssize_t read_list(self, const char *text, Py_ssize_t size) except -2:
        """Reads scalars up to where the list or the text ends, and returns where that is.

        Returns -1 if they are not in their plainest form, or too large.
        """
        cdef Py_ssize_t at = 0, start, used = 0
        cdef bint has_high = False
        self.count = 0
        self.strings = 0
        size = min(size, max_scalars_bytes)
        while True:
            while at < size and text[at] == 32:
                at += 1
            if at == size or self.count == max_scalars:
                return -1
            start = at
            if text[at] == 34:
                start += 1
                at = end_of_string(text, start, size, &has_high)
                if at < 0:
                    return -1
                self.strings |= 1u << self.count
                self.keep(text + start, at - start, &used)
                at += 1
            elif text[at] == 45 or is_digit(text[at]):
                at = end_of_number(text, at, size)
                if at < 0:
                    return -1
                self.keep(text + start, at - start, &used)
            elif size - at >= 4 and memcmp(text + at, b"null", 4) == 0:
                self.values[self.count] = NULL
                at += 4
            elif size - at >= 4 and memcmp(text + at, b"true", 4) == 0:
                self.values[self.count] = b"true"
                at += 4
            elif size - at >= 5 and memcmp(text + at, b"false", 5) == 0:
                self.values[self.count] = b"false"
                at += 5
            else:
                return -1
            self.count += 1
            while at < size and text[at] == 32:
                at += 1
            if at == size or text[at] == 93:
                return at if not has_high or is_utf8(text, at) else -1
            if text[at] != 44:
                return -1
            at += 1

    cdef void keep(self, const char *text, Py_ssize_t size, Py_ssize_t *used) noexcept:
        cdef char *kept = self.texts + used[0]
        memcpy(kept, text, size)
        kept[size] = 0
        self.values[self.count] = kept
        used[0] += size + 1


cdef class Frame:
    """The ends of a body, or a whole body without parameters."""

    def __init__(self, bytes before not None, bytes after=None):
        self.before, self.is_whole = before, after is None
        self.after = b"" if after is None else after

    def parse(self, bytes body not None, Scalars scalars not None):
        """The parameters of a body that has this frame, as texts; None if it has another."""
        cdef Py_ssize_t at = PyBytes_GET_SIZE(self.before)
        if not self.holds(PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), scalars):
            return None
        return [] if self.is_whole else scalars.parse(body[at : PyBytes_GET_SIZE(body) - PyBytes_GET_SIZE(self.after)])

    cdef bytes key(self):
        """What is the same in all bodies that have this frame."""
        return self.before + self.after

    cdef bint holds(self, const char *body, Py_ssize_t size, Scalars scalars) except -1:
        """Whether a body has this frame. Its parameters are then in `scalars`."""
        cdef Py_ssize_t at = PyBytes_GET_SIZE(self.before), rest = PyBytes_GET_SIZE(self.after)
        if size < at + rest or memcmp(body, PyBytes_AS_STRING(self.before), at) != 0:
            return False
        if self.is_whole:
            scalars.count = 0
            scalars.strings = 0
            return size == at
        if memcmp(body + size - rest, PyBytes_AS_STRING(self.after), rest) != 0:
            return False
        return scalars.read(body + at, size - at - rest)


cdef bint is_digit(char byte) noexcept:
    return 48 <= byte <= 57


cdef Py_ssize_t end_of_string(const char *text, Py_ssize_t at, Py_ssize_t size, bint *has_high) noexcept:
    """Where the closing quote is; -1 if there is none, or the string has an escape or a control character."""
    cdef unsigned char byte
    while at < size:
        byte = <unsigned char>text[at]
        if byte == 34:
            return at
        if byte < 32 or byte == 92:
            return -1
        if byte >= 128:
            has_high[0] = True
        at += 1
    return -1


cdef Py_ssize_t end_of_number(const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
    """Where a JSON number ends; -1 if it is not one."""
    if text[at] == 45:
        at += 1
    if at == size or not is_digit(text[at]):
        return -1
    at = at + 1 if text[at] == 48 else end_of_digits(text, at, size)
    if at < size and text[at] == 46:
        if at + 1 == size or not is_digit(text[at + 1]):
            return -1
        at = end_of_digits(text, at + 1, size)
    if at < size and (text[at] == 101 or text[at] == 69):
        at += 1
        if at < size and (text[at] == 43 or text[at] == 45):
            at += 1
        if at == size or not is_digit(text[at]):
            return -1
        at = end_of_digits(text, at, size)
    return at


cdef Py_ssize_t end_of_digits(const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
    while at < size and is_digit(text[at]):
        at += 1
    return at


cdef bint is_utf8(const char *text, Py_ssize_t size) except -1:
    try:
        PyUnicode_DecodeUTF8(text, size, NULL)
    except UnicodeDecodeError:
        return False
    return True
