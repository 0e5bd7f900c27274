from plainsql_server.lane.engine.exchange cimport Client
from plainsql_server.lane.known_head cimport KnownHead, Match
from plainsql_server.lane.lane cimport Lane
from plainsql_server.lane.reasons cimport Reason
from plainsql_server.lane.route cimport RouteHead


cdef class Wire(Client):
    cdef Lane lane
    cdef object protocol, parser_head, parse, transport
    cdef int fd
    # What the parser has been fed since the connection was last between two requests; None if that is too much.
    cdef bytes fed
    # How many requests the ordinary path has begun to read or was handed, and how many of them it has answered.
    cdef long begun, answered, handed_over
    # What has arrived of a request with a known head, and what came behind the request that is being answered.
    cdef bytes partial, later
    # The request that is being answered.
    cdef bytes data
    # The heads that were learned here, newest first, and the one that was used last; None if there is none.
    cdef list route_heads
    cdef RouteHead head
    # How many requests with other heads have come since it had the most that it remembers.
    cdef int unknown_heads
    # Why the last request did not take the lane, or is being handed over.
    cdef Reason reason
    cdef readonly double idle_since_s
    cdef public bint is_paused
    # Whether the transport may hold bytes that have not been sent.
    cdef bint is_dirty

    cdef bint is_free(self) noexcept
    cdef bint start(self, bytes data, KnownHead head) except -1
    cdef bint pass_on(self, Reason reason) noexcept
    cdef bint begin(self, bytes data) except -1
    cdef Match find_head(self, const char *text, Py_ssize_t size) except *
    cdef int feed_parser(self, bytes data) except -1
    cdef int send(self, char *start, Py_ssize_t size) except -1
    cdef int go_on(self) except -1
    cdef int let_go(self) except -1
