cdef enum Arrival:
    NOTHING = 0
    # Whole messages of the server's, or the end of the connection.
    WHOLE = 1
    # What may be the middle of a message, or the beginning of a long one.
    PART = 2


cdef Arrival peek(int fd, bint has_tls) noexcept
