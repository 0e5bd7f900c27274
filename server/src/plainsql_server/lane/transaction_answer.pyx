# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Writes the answer to a transaction: the same bytes that `http/data/transaction.py` writes.

Used like `answer.pyx`.
"""

from libc.stdint cimport int64_t

from plainsql_server.lane.buffer cimport Buffer
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.engine.exchange cimport Exchange
from plainsql_server.lane.engine.step cimport Step

from plainsql_server.core.ids import Kind, new_id

cdef object TRANSACTION = Kind.TRANSACTION
cdef bytes COMMAND = b"TRANSACTION"


cdef class LaneTransactionAnswer(Answer):
    """One answer after the other; a process has one such object."""

    cdef int write_body(self, Exchange exchange, const char *request_id, Py_ssize_t id_size) except -1:
        cdef Buffer body = self.body
        cdef Step step
        cdef int index
        # When the step before ended; the first one begins when the transaction is sent.
        cdef int64_t read_until_us = exchange.sent_ns // 1000, affected_rows = 0
        self.rows_bytes = 0
        body.add_text(b'{"success":true,"results":[')
        for index in range(exchange.count):
            step = <Step>exchange.steps[index]
            if index:
                body.add_text(b",")
            body.add_text(b"{")
            affected_rows += self.write_result(step)
            body.add_text(b'"exec_us":')
            body.add_number(step.ended_ns // 1000 - read_until_us)
            body.add_text(b"}}")
            read_until_us = step.ended_ns // 1000
        self.command = COMMAND
        self.stop_clocks(exchange, monotonic_ns(), exchange.committed_ns)
        body.add_text(b'],"affected_rows":')
        body.add_number(affected_rows)
        body.add_text(b',"transaction":{"id":"')
        body.add_bytes(new_id(TRANSACTION).encode())
        body.add_text(b'","isolation":"serializable","attempts":1,"participants":1},"timings":{"total_us":')
        body.add_number(self.total_us)
        body.add_text(b',"exec_us":')
        body.add_number(self.exec_us)
        body.add_text(b',"commit_us":')
        body.add_number(exchange.committed_ns // 1000 - read_until_us)
        body.add_text(b'},"request_id":"')
        body.add(request_id, id_size)
        return body.add_text(b'"}')
