# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bytes of one HTTP connection: which of them the lane reads, and which the parser.

    protocol.data_received = wire.data_received

A request whose head the parser has read before on this connection is passed to `start`, which a `Track` implements. The
parser gets any other one, and everything that arrives until the ordinary path has answered what it has begun. So the
two never read parts of the same request.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from plainsql_server.lane.known_head cimport COMPLETE, UNKNOWN, Match
from plainsql_server.lane.reasons cimport HEAD, PIPELINED, STOPPING, UNREAD
from plainsql_server.lane.route cimport LaneRoute

cdef extern from "sys/socket.h":
    ssize_t send_bytes "send"(int, const void *, size_t, int) noexcept
    int MSG_NOSIGNAL, MSG_DONTWAIT

# Longer requests are not learned from.
cdef Py_ssize_t MAX_LEARNED_BYTES = 16 * 1024
# How many heads a connection remembers: one for each route, and more for clients whose other headers differ.
cdef int MAX_HEADS = 4
# With so many, it learns another one only after as many requests with heads that it doesn't know. More clients than that
# may share it, each with a head of its own: if all were learned, each would push out one that is about to come again.
cdef int UNKNOWN_HEADS = 8


cdef class Wire(Client):
    """What arrives on one HTTP connection, and how it is answered."""

    def __init__(self, Lane lane not None, protocol, parser_head, parse):
        self.lane, self.protocol, self.parser_head, self.parse = lane, protocol, parser_head, parse
        self.fd = -1
        self.is_dirty = True
        self.fed = b""

    @property
    def is_busy(self):
        """Whether the lane is answering a request."""
        return not self.is_free()

    cdef bint is_free(self) noexcept:
        """Whether the lane can begin a request."""
        return True

    cdef bint start(self, bytes data, KnownHead head) except -1:
        """Starts a request that has arrived whole. Returns False if the ordinary path must read it."""
        raise NotImplementedError

    cdef bint pass_on(self, Reason reason) noexcept:
        """Remembers why a request is not for the lane, or no longer. Returns False."""
        self.reason = reason
        return False

    def data_received(self, bytes data not None):
        """Called by the transport."""
        cdef bint was_partial
        if not self.is_free():
            # The client sends its next request before it has its answer: that waits, and the client with it.
            if self.later is None:
                self.transport.pause_reading()
            self.later = data if self.later is None else self.later + data
            return
        if self.head is None or self.begun != self.answered:
            self.reason = HEAD if self.begun == self.answered else PIPELINED
            self.feed_parser(data)
            return
        was_partial = self.partial is not None
        if was_partial:
            data, self.partial = self.partial + data, None
        if not self.begin(data):
            self.feed_parser(data)
        elif was_partial and self.partial is None:
            self.protocol.request_is_complete()

    cdef bint begin(self, bytes data) except -1:
        """Starts a request if it is one for the lane, or keeps it if it has not arrived whole."""
        cdef Match match = self.find_head(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        cdef KnownHead head = self.head.known
        cdef Py_ssize_t end = head.body_at + head.body_size
        if match == UNKNOWN:
            return self.pass_on(HEAD)
        if self.lane.readiness.draining:
            return self.pass_on(STOPPING)
        if self.is_paused:
            return self.pass_on(UNREAD)
        if match != COMPLETE:
            self.partial = data
            self.protocol.request_begins()
            self.protocol.part_arrived(PyBytes_GET_SIZE(data))
            return True
        if end < PyBytes_GET_SIZE(data):
            self.later, data = data[end:], data[:end]
            self.transport.pause_reading()
        if self.start(data, head):
            return self.go_on() == 0
        if self.later is not None:
            self.later = None
            self.transport.resume_reading()
        return False

    cdef Match find_head(self, const char *text, Py_ssize_t size) except *:
        """Finds the head that a text begins with among those that were learned here, and uses it."""
        cdef RouteHead other
        cdef Match match = UNKNOWN if self.head is None else self.head.known.read(text, size)
        if match != UNKNOWN or self.head is None:
            return match
        for other in self.route_heads:
            if other is not self.head:
                match = other.known.read(text, size)
                if match != UNKNOWN:
                    self.head = other
                    return match
        return UNKNOWN

    cdef int feed_parser(self, bytes data) except -1:
        """Has the ordinary path read what the client sent."""
        cdef long begun = self.begun
        if begun == self.answered:
            self.fed = data
        elif self.fed is not None:
            self.fed = self.fed + data
        if self.fed is not None and PyBytes_GET_SIZE(self.fed) > MAX_LEARNED_BYTES:
            self.fed = None
        self.data = None
        self.is_dirty = True
        parser_head = self.parser_head
        self.parse(data)
        self.begun = parser_head.begun + self.handed_over
        self.lane.passed.counts[<int>self.reason] += self.begun - begun
        return 0

    def request_answered(self):
        """Called by the protocol when the ordinary path has answered a request."""
        self.answered += 1
        self.fed = None

    def learn(self, request):
        """Called by the protocol with each small request that the parser has read, before it is answered."""
        cdef bytes fed = self.fed
        cdef LaneRoute route
        self.fed = None
        if fed is None or self.parser_head.begun + self.handed_over != self.answered + 1:
            return
        route = <LaneRoute>self.lane.routes.get(request.path)
        if route is None or self.find_head(PyBytes_AS_STRING(fed), PyBytes_GET_SIZE(fed)) == COMPLETE:
            return
        if self.route_heads is not None and len(self.route_heads) == MAX_HEADS:
            self.unknown_heads += 1
            if self.unknown_heads < UNKNOWN_HEADS:
                return
        learned = self.lane.learned_heads.learn(fed, request, route.content_type, route.read_secret)
        if learned is None:
            return
        self.unknown_heads = 0
        self.head = RouteHead(learned, route)
        self.route_heads = [self.head] if self.route_heads is None else [self.head, *self.route_heads[: MAX_HEADS - 1]]
        self.transport = self.protocol.transport
        if self.transport.get_extra_info("sslcontext") is None:
            self.fd = self.transport.get_extra_info("socket").fileno()

    cdef int send(self, char *start, Py_ssize_t size) except -1:
        """Writes an answer to the socket, or has the transport do it if that is full or encrypted."""
        cdef Py_ssize_t sent
        if self.fd >= 0 and (not self.is_dirty or self.transport.get_write_buffer_size() == 0):
            sent = send_bytes(self.fd, start, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            self.is_dirty = False
            if sent == size:
                return 0
            if sent > 0:
                start += sent
                size -= sent
        self.is_dirty = True
        self.protocol.write_answer(PyBytes_FromStringAndSize(start, size))
        return 0

    cdef int go_on(self) except -1:
        """Reads on, beginning with what the client had sent before it got its answer."""
        cdef bytes later = self.later
        if later is not None and self.is_free():
            self.later = None
            if not self.transport.is_closing():
                self.transport.resume_reading()
                self.data_received(later)
        return 0

    cdef int let_go(self) except -1:
        """Drops the connection's other objects, which refer to this one: the connection is lost."""
        self.protocol = self.parser_head = self.parse = self.transport = None
        self.head = self.route_heads = None
        self.later = self.partial = self.fed = self.data = None
        self.fd = -1
        return 0
