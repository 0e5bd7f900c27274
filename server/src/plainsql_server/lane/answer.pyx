# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Writes the answer to a query: the same bytes that `http/data/query.py` and `http/server/responses.py` write.

    answer.write(exchange, request_id, id_size, server_headers, more_headers)
    send(answer.start, answer.size)

The rows go from libpq's memory straight into the answer. The head is written last, because it has the length of the
body, into room that was left before it: so both leave in one piece.
"""

from libc.string cimport memcpy

from plainsql_server.engine.execution.execution import read_command_tag
from plainsql_server.lane.clocks cimport monotonic_ns

# Room for a head. An Origin header makes the longest, of about 800 bytes.
cdef Py_ssize_t HEAD_ROOM = 2048
# A buffer that one large answer has grown is cut back to this size.
cdef Py_ssize_t KEPT_ROOM = 256 * 1024
cdef int MAX_TAGS = 1000


cdef class Answer:
    """One answer after the other; a process has one such object."""

    def __cinit__(self):
        self.body, self.head, self.tags, self.tags_without_rows = Buffer(), Buffer(), {}, {}

    cdef int write(
        self, Exchange exchange, const char *request_id, Py_ssize_t id_size, list server_headers, bytes more_headers,
    ) except -1:
        """Writes an answer. Raises what an encoder raises for a value; nothing is written then."""
        cdef Buffer body = self.body, head = self.head
        body.shrink(KEPT_ROOM)
        body.reserve(HEAD_ROOM)
        body.used = HEAD_ROOM
        self.write_body(exchange, request_id, id_size)
        self.write_head(body.used - HEAD_ROOM, request_id, id_size, server_headers, more_headers)
        if head.used > HEAD_ROOM:
            head.add(body.start + HEAD_ROOM, body.used - HEAD_ROOM)
            self.start, self.size = head.start, head.used
            return 0
        self.start = body.start + HEAD_ROOM - head.used
        memcpy(self.start, head.start, head.used)
        self.size = body.used - HEAD_ROOM + head.used
        return 0

    def written(self, Exchange exchange not None, bytes request_id not None, list server_headers, bytes more_headers):
        """The bytes that `write` writes, for tests."""
        self.write(exchange, request_id, len(request_id), server_headers, more_headers)
        return self.start[: self.size]

    cdef int write_body(self, Exchange exchange, const char *request_id, Py_ssize_t id_size) except -1:
        cdef Buffer body = self.body
        cdef int64_t now_ns
        self.rows_bytes = 0
        body.add_text(b'{"success":true,')
        self.write_result(<Step>exchange.steps[0])
        now_ns = monotonic_ns()
        self.stop_clocks(exchange, now_ns, now_ns)
        body.add_text(b'"total_us":')
        body.add_number(self.total_us)
        body.add_text(b',"exec_us":')
        body.add_number(self.exec_us)
        body.add_text(b'},"request_id":"')
        body.add(request_id, id_size)
        return body.add_text(b'"}')

    cdef int64_t write_result(self, Step step) except -1:
        """Writes what each result has, up to its timings. Returns the number of affected rows."""
        cdef Buffer body = self.body
        cdef Py_ssize_t rows_at
        cdef int64_t affected_rows
        body.add_bytes(step.shape())
        body.add_text(b',"rows":[')
        rows_at = body.used
        step.write_rows(body)
        # As the ordinary path counts it: without the commas between the rows.
        self.rows_bytes += body.used - rows_at - (step.rows - 1 if step.rows else 0)
        self.command, affected_rows = self.read_tag(step.tag, step.has_shape)
        body.add_text(b'],"row_count":')
        body.add_number(step.rows)
        body.add_text(b',"truncated":false,"affected_rows":')
        body.add_number(affected_rows)
        body.add_text(b',"command":"')
        body.add_bytes(self.command)
        body.add_text(b'","timings":{')
        return affected_rows

    cdef int write_head(
        self, Py_ssize_t body_size, const char *request_id, Py_ssize_t id_size, list server_headers,
        bytes more_headers,
    ) except -1:
        cdef Buffer head = self.head
        if server_headers is not self.server_headers:
            # The server makes a new list each second, because of the date in it.
            self.server_headers = server_headers
            self.prefix = b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\ncontent-length: " % (
                b"".join([b"%b: %b\r\n" % header for header in server_headers])
            )
        head.used = 0
        head.add_bytes(self.prefix)
        head.add_number(body_size)
        head.add_text(b"\r\nx-request-id: ")
        head.add(request_id, id_size)
        head.add_text(b"\r\nserver-timing: queue;dur=")
        head.add_thousandths(self.queue_us)
        head.add_text(b", engine;dur=")
        head.add_thousandths(self.exec_us)
        head.add_text(b", total;dur=")
        head.add_thousandths(self.total_us)
        head.add_text(b"\r\n")
        head.add_bytes(more_headers)
        return head.add_text(b"\r\n")

    cdef int stop_clocks(self, Exchange exchange, int64_t now_ns, int64_t ended_ns) except -1:
        # Each time by itself in microseconds, so that those of a transaction's statements add up.
        self.total_us = now_ns // 1000 - exchange.started_ns // 1000
        self.queue_us = exchange.leased_ns // 1000 - exchange.started_ns // 1000
        self.exec_us = ended_ns // 1000 - exchange.sent_ns // 1000
        return 0

    cdef tuple read_tag(self, bytes tag, bint returns_rows):
        """The command, and the number of affected rows."""
        cdef dict tags = self.tags if returns_rows else self.tags_without_rows
        found = tags.get(tag)
        if found is None:
            command, affected_rows = read_command_tag(tag, returns_rows=returns_rows)
            found = command.encode(), affected_rows
            if len(tags) < MAX_TAGS:
                tags[tag] = found
        return found
