# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Writes the answer to a statement that the Neon driver sends: the same bytes that `http/data/neon.py` writes.

Used like `answer.pyx`.
"""

from libc.stdint cimport int64_t

from plainsql_server.lane.buffer cimport Buffer
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.engine.exchange cimport Exchange
from plainsql_server.lane.engine.step cimport Step

from plainsql_server.http.data.neon import NO_FIELDS, before_rows

cdef bytes no_fields = NO_FIELDS
cdef int MAX_OPENINGS = 1000


cdef class LaneSqlAnswer(Answer):
    """One answer after the other; a process has one such object."""

    def __cinit__(self):
        self.openings = {}

    cdef int write_body(self, Exchange exchange, const char *request_id, Py_ssize_t id_size) except -1:
        cdef Buffer body = self.body
        cdef Step step = <Step>exchange.steps[0]
        cdef Py_ssize_t rows_at
        cdef int64_t now_ns
        body.add_bytes(self.opening_of(step.tag))
        rows_at = body.used
        step.write_rows(body)
        # As the ordinary path counts it: without the commas between the rows.
        self.rows_bytes = body.used - rows_at - (step.rows - 1 if step.rows else 0)
        self.command = <bytes>self.read_tag(step.tag, step.has_shape)[0]
        now_ns = monotonic_ns()
        self.stop_clocks(exchange, now_ns, now_ns)
        body.add_text(b"],")
        body.add_bytes(step.shape_json if step.has_shape else no_fields)
        if exchange.plan.encoding.rows_as_arrays:
            return body.add_text(b',"rowAsArray":true}')
        return body.add_text(b',"rowAsArray":false}')

    cdef bytes opening_of(self, bytes tag):
        found = self.openings.get(tag)
        if found is None:
            found = before_rows(tag)
            if len(self.openings) < MAX_OPENINGS:
                self.openings[tag] = found
        return found
