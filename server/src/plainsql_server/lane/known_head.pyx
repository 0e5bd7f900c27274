# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The head of a request that the parser has read before, recognized by its bytes.

    parts = b"POST /v1/query HTTP/1.1\r\nAuthorization: Bearer ", b"\r\nContent-Length: ", b"\r\n\r\n"
    head = KnownHead(parts, (SECRET, LENGTH))
    head.match(data)    # COMPLETE: the body is at data[head.body_at : head.body_at + head.body_size]

Two requests of a client usually differ in a few spans only: the digits of the content length, a request id, a trace id.
Those of two clients behind the same proxy also differ in the secret, and in the database that a header names.
Everything else must be equal, byte for byte, and a span must be of the strictest form that the ordinary path accepts.
Nothing is parsed here, so the rules of HTTP stay in one place. `learning.py` makes known heads.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

LENGTH = 0
REQUEST_ID = 1
TRACEPARENT = 2
SECRET = 3
DATABASE = 4

# Longer bodies take the ordinary path.
MAX_BODY_BYTES = 64 * 1024
cdef Py_ssize_t max_body_bytes = MAX_BODY_BYTES
cdef int MAX_LENGTH_DIGITS = 6
# `core/ids.py` accepts req_ and 8 to 64 letters and digits.
cdef int MIN_ID = 12, MAX_ID = 68
# `core/names.py` allows databases up to 63 characters.
cdef int MAX_DATABASE = 63


cdef class KnownHead:
    """One known head. `match` keeps what it found in the attributes, until the next call."""

    COMPLETE = 2

    def __init__(self, tuple parts not None, tuple kinds not None):
        if len(parts) != len(kinds) + 1 or len(set(kinds)) != len(kinds) or not {LENGTH, SECRET} <= set(kinds):
            raise ValueError("pass one part more than spans, at most one span of a kind, a length and a secret")
        for part in parts:
            if not isinstance(part, bytes):
                raise TypeError("parts are bytes")
        self.parts, self.spans = parts, len(kinds)
        for index, kind in enumerate(kinds):
            self.kinds[index] = kind

    @property
    def key(self):
        """What two heads have in common that are the same."""
        return (self.parts, *(self.kinds[index] for index in range(self.spans)))

    def match(self, bytes data not None):
        """Whether the data begins with this head: 0 if not, 1 if something is missing, 2 if the body is complete."""
        return <int>self.read(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef Match read(self, const char *text, Py_ssize_t size) noexcept:
        cdef Py_ssize_t at = 0, length
        cdef int index
        cdef bytes part
        self.id_at = self.trace_at = self.database_at = -1
        self.id_size = self.database_size = 0
        for index in range(self.spans + 1):
            part = <bytes>self.parts[index]
            length = PyBytes_GET_SIZE(part)
            if size - at < length or memcmp(text + at, PyBytes_AS_STRING(part), length) != 0:
                return UNKNOWN
            at += length
            if index < self.spans:
                at = self.read_span(self.kinds[index], text, at, size)
                if at < 0:
                    return UNKNOWN
        self.body_at = at
        return COMPLETE if size - at >= self.body_size else INCOMPLETE

    cdef Py_ssize_t read_span(self, int kind, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
        """Where the span ends; -1 if it has not the form that the next part would need anyway."""
        if kind == 0:
            return self.read_length(text, at, size)
        if kind == 3:
            return self.read_secret(text, at, size)
        if kind == 4:
            return self.read_database(text, at, size)
        if kind == 1:
            return self.read_id(text, at, size)
        return self.read_traceparent(text, at, size)

    cdef Py_ssize_t read_length(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
        cdef Py_ssize_t start = at, value = 0
        while at < size and 48 <= text[at] <= 57 and at - start < MAX_LENGTH_DIGITS:
            value = value * 10 + text[at] - 48
            at += 1
        if at == start or text[start] == 48 or value > max_body_bytes:
            return -1
        self.body_size = value
        return at

    cdef Py_ssize_t read_secret(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
        if size - at < SECRET_SIZE or not is_secret(text + at):
            return -1
        self.secret_at = at
        return at + SECRET_SIZE

    cdef Py_ssize_t read_database(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
        cdef Py_ssize_t start = at
        if at == size or not 97 <= text[at] <= 122:
            return -1
        while at < size and (97 <= text[at] <= 122 or 48 <= text[at] <= 57 or text[at] == 95 or text[at] == 45):
            at += 1
        if at - start > MAX_DATABASE:
            return -1
        self.database_at, self.database_size = start, at - start
        return at

    cdef Py_ssize_t read_id(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
        cdef Py_ssize_t start = at
        if size - at < MIN_ID or memcmp(text + at, b"req_", 4) != 0:
            return -1
        at += 4
        while at < size and is_alphanumeric(text[at]):
            at += 1
        if not MIN_ID <= at - start <= MAX_ID:
            return -1
        self.id_at, self.id_size = start, at - start
        return at

    cdef Py_ssize_t read_traceparent(self, const char *text, Py_ssize_t at, Py_ssize_t size) noexcept:
        # 00-<32 hexadecimal digits, not all 0>-<16, not all 0>-<2>; later versions take the ordinary path.
        if size - at < 55 or memcmp(text + at, b"00-", 3) != 0 or text[at + 35] != 45 or text[at + 52] != 45:
            return -1
        if not is_hexadecimal(text + at + 3, 32) or not is_hexadecimal(text + at + 36, 16):
            return -1
        if is_zero(text + at + 3, 32) or is_zero(text + at + 36, 16) or not is_hexadecimal(text + at + 53, 2):
            return -1
        self.trace_at = at
        return at + 55


cdef bint is_alphanumeric(char byte) noexcept:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122


cdef bint is_secret(const char *text) noexcept:
    """Whether a text begins with something of a secret's form: svc_k_ or svc_s_, and letters and digits."""
    if memcmp(text, b"svc_", 4) != 0 or (text[4] != 107 and text[4] != 115) or text[5] != 95:
        return False
    # The last eight overlap those before them.
    return not (
        others_in(text + 6) | others_in(text + 14) | others_in(text + 22) | others_in(text + 30)
        | others_in(text + SECRET_SIZE - 8)
    )


cdef inline uint64_t others_in(const char *text) noexcept:
    """Not 0 if one of eight bytes is neither a letter nor a digit. Each request has a secret, so all are seen at once.

    If all are ASCII, adding 128 - x sets the highest bit of those that are x or more, and carries nothing over. If one
    is not, its own highest bit is in the result.
    """
    cdef uint64_t each = 0x0101010101010101, eight, letters, digits
    memcpy(&eight, text, 8)
    letters = eight | 32 * each
    letters = (letters + (128 - 97) * each) & ~(letters + (128 - 123) * each)
    digits = (eight + (128 - 48) * each) & ~(eight + (128 - 58) * each)
    return (eight | ~(letters | digits)) & 128 * each


cdef bint is_hexadecimal(const char *text, int size) noexcept:
    cdef int index
    for index in range(size):
        if not (48 <= text[index] <= 57 or 97 <= text[index] <= 102):
            return False
    return True


cdef bint is_zero(const char *text, int size) noexcept:
    cdef int index
    for index in range(size):
        if text[index] != 48:
            return False
    return True
