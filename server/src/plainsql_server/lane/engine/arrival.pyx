# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What PostgreSQL has sent, before libpq reads it: whole messages, or perhaps part of one.

    if peek(fd, has_tls) == WHOLE: …

Once libpq has read the beginning of a message, it enlarges its buffer for all of it and goes on reading for as long as
the server keeps up. For a row of a gigabyte, that is a gigabyte. So only whole messages may be read without a valve
(`engine/connection/valve.py`). A look at five bytes tells, if everything before them was whole:

- Without TLS, these are the type and the length of a message. In the middle of an error or a notice they cannot look
  like that, because its texts have no zero bytes. In the middle of a row they can, so the caller must rule that out.
- With TLS, they are the head of a record. libpq reads one record at a time, and PostgreSQL writes one each time its
  buffer is full, or when it flushes. So a record that is shorter than the buffer ends with the end of a message.

Since all messages before it were whole, libpq's buffer is empty and has space for the whole record. Nothing is left in
the TLS library, whose contents the socket does not announce.
"""

from libc.errno cimport EAGAIN, errno

cdef extern from "sys/socket.h":
    ssize_t recv(int, void *, size_t, int) noexcept
    int MSG_PEEK, MSG_DONTWAIT

# PostgreSQL's buffer for what it sends.
cdef int BUFFER_BYTES = 8192


cdef Arrival peek(int fd, bint has_tls) noexcept:
    cdef unsigned char[5] head
    cdef ssize_t size = recv(fd, head, 5, MSG_PEEK | MSG_DONTWAIT)
    if size < 0 and errno == EAGAIN:
        return NOTHING
    if size <= 0:
        # Reading finds out what is the matter.
        return WHOLE
    if size < 5:
        return PART
    if has_tls:
        return WHOLE if (head[3] << 8 | head[4]) < BUFFER_BYTES else PART
    return WHOLE if is_first(head[0]) and not head[1] and not head[2] and head[3] << 8 < BUFFER_BYTES else PART


cdef bint is_first(unsigned char type_) noexcept:
    """Whether the answer to a statement or a sync can begin with a message of this type.

    ParseComplete, BindComplete, ErrorResponse and ReadyForQuery.
    """
    return type_ == c"1" or type_ == c"2" or type_ == c"E" or type_ == c"Z"


def peeked(int fd, bint has_tls):
    """`peek`, for tests."""
    return <int>peek(fd, has_tls)
