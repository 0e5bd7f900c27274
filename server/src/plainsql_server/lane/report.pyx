# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the lane tells the rest of the service about its requests: log lines, metrics and usage, in batches.

    report.add(caller, …)    # for each request
    report.flush()           # ten times a second, and before the process stops

A line has the same fields in the same order as `logs.py` writes for a `RequestFinished`; a test compares both.
"""

import time

from libc.stdint cimport int64_t

from plainsql_server.core.clock import time_of
from plainsql_server.lane.clocks cimport wall_us
from plainsql_server.metrics import BUCKETS_US

cdef int buckets = len(BUCKETS_US)
cdef int64_t[32] bucket_us
for _index, _edge in enumerate(BUCKETS_US):
    bucket_us[_index] = _edge


cdef class Durations:
    """A histogram of durations, with the buckets of the metrics."""

    cdef void add(self, int64_t duration_us) noexcept:
        cdef int index = 0
        while index < buckets and duration_us > bucket_us[index]:
            index += 1
        self.counts[index] += 1
        self.sum_us += duration_us

    def take(self):
        """The counts and the sum since the last call."""
        cdef int index
        taken = [self.counts[index] for index in range(buckets + 1)], self.sum_us
        for index in range(buckets + 1):
            self.counts[index] = 0
        self.sum_us = 0
        return taken


cdef class Report:
    """The requests of one route that have not been reported yet."""

    def __init__(self, str route, log, metrics, tally):
        self.route, self.log, self.metrics, self.tally = route, log, metrics, tally
        self.lines, self.callers = Buffer(), []
        self.total, self.queue, self.engine = Durations(), Durations(), Durations()

    cdef int add(
        self, Caller caller, const char *request_id, Py_ssize_t id_size, const char *trace_id, int64_t total_us,
        int64_t queue_us, int64_t exec_us, int rows, bytes command, Py_ssize_t size_bytes,
    ) except -1:
        cdef Buffer lines = self.lines
        cdef int64_t now_us = wall_us()
        lines.add_text(b'{"at":"')
        self.add_time(now_us)
        lines.add_text(b'","event":"request","request_id":"')
        lines.add(request_id, id_size)
        lines.add_text(b'","method":"POST","route":"')
        lines.add_bytes(self.route.encode())
        lines.add_text(b'","status":200,"total_us":')
        lines.add_number(total_us)
        lines.add_text(b',"queue_us":')
        lines.add_number(queue_us)
        lines.add_text(b',"exec_us":')
        lines.add_number(exec_us)
        lines.add_text(b',"row_count":')
        lines.add_number(rows)
        lines.add_text(b',"command":"')
        lines.add_bytes(command)
        lines.add_bytes(caller.log_names)
        if trace_id == NULL:
            lines.add_text(b'null')
        else:
            lines.add_text(b'"')
            lines.add(trace_id, 32)
            lines.add_text(b'"')
        lines.add_text(b',"stream":null,"sent_bytes":0}\n')
        self.total.add(total_us)
        if exec_us:
            self.queue.add(queue_us)
            self.engine.add(exec_us)
        self.finished += 1
        self.rows += rows
        if caller.requests == 0:
            self.callers.append(caller)
        caller.requests += 1
        caller.rows += rows
        caller.engine_us += exec_us
        caller.size_bytes += size_bytes
        caller.used_us = max(caller.used_us, now_us - total_us)
        return 0

    def note(
        self, Caller caller not None, bytes request_id not None, bytes trace_id, int64_t total_us, int64_t queue_us,
        int64_t exec_us, int rows, bytes command not None, Py_ssize_t size_bytes,
    ):
        """`add`, for tests."""
        self.add(
            caller, request_id, len(request_id), NULL if trace_id is None else <const char *>trace_id, total_us,
            queue_us, exec_us, rows, command, size_bytes,
        )

    cdef int add_time(self, int64_t now_us) except -1:
        if now_us // 1_000_000 != self.second:
            self.second = now_us // 1_000_000
            self.second_text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(self.second)).encode()
        self.lines.add_bytes(self.second_text)
        self.lines.add_fraction(now_us % 1_000_000, 6)
        return self.lines.add_text(b"Z")

    @property
    def is_empty(self):
        return self.finished == 0

    def flush(self):
        """Hands everything over to the log, the metrics and the tally."""
        cdef Caller caller
        if self.finished == 0:
            return
        lines = bytes(self.lines)
        self.lines.used = 0
        self.metrics.add_requests(
            self.route, self.finished, self.rows, (self.total.take(), self.queue.take(), self.engine.take())
        )
        self.finished = self.rows = 0
        callers, self.callers = self.callers, []
        for caller in callers:
            self.tally.note_key(caller.principal.key_id, time_of(caller.used_us))
            self.tally.note_usage(
                caller.principal.organization_id, caller.place.database_id, caller.rows, caller.engine_us,
                caller.size_bytes, requests=caller.requests,
            )
            caller.requests = caller.rows = caller.engine_us = caller.size_bytes = 0
        # Last: it may fail, and the counts must not be lost with the lines.
        self.log.write_lines(lines)
