# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast lane of one HTTP connection: from the bytes of a request to the bytes of its answer.

    protocol.data_received = track.data_received

A request with a known head and frame, whose caller is known and for whom a connection is free that has prepared its
statement, is sent to the engine at once, and answered when the engine has answered. Any other one is fed to the parser.
What turns out to be out of the ordinary later is handed over to the ordinary path, which goes on in the middle, with
the same request id, permit, slot, connection and deadline. The lane does nothing that the ordinary path would do again
before it is certain that it keeps the request; so the permit is taken last.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from plainsql_server.lane cimport libpq
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.exchange cimport CONVERT, DONE, WAITING
from plainsql_server.lane.known_head cimport COMPLETE, UNKNOWN, Match
from plainsql_server.lane.lane cimport AFTER_SENDING, WHEN_DONE

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import new_request_id
from plainsql_server.data_plane.databases import WITHOUT_CODE_FOR_S
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.http.app.rate_limit import rate_headers
from plainsql_server.lane.handover import LaneExchange, LaneRequest, hand_over_sent, hand_over_slot, refuse
from plainsql_server.lane.learning import learn_head

cdef extern from "sys/socket.h":
    ssize_t send_bytes "send"(int, const void *, size_t, int) noexcept
    int MSG_NOSIGNAL, MSG_DONTWAIT

cdef int SEQUENCES = int(SessionState.SEQUENCES)
cdef int64_t without_code_for_ns = <int64_t>(WITHOUT_CODE_FOR_S * 1e9)
# Longer requests are not learned from.
cdef Py_ssize_t MAX_LEARNED_BYTES = 16 * 1024


cdef class WaitingQuery(Waiting):
    """The request of a track, in the admission queue."""

    cdef int run(self) except -1:
        return self.track.run_waiting()

    cdef int expire(self) except -1:
        return self.track.refuse()

    cdef int abort(self) except -1:
        return self.track.abort(self.track.exchange)


cdef class Track(Client):
    """The lane's side of one HTTP connection."""

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
        return self.exchange is None and self.waiting is None

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
            self.feed_parser(data)
            return
        was_partial = self.partial is not None
        if was_partial:
            data, self.partial = self.partial + data, None
        if not self.begin(data):
            self.feed_parser(data)
        elif was_partial and self.partial is None:
            self.protocol.request_is_complete()

    cdef int feed_parser(self, bytes data) except -1:
        """Has the ordinary path read what the client sent."""
        if self.begun == self.answered:
            self.fed = data
        elif self.fed is not None:
            self.fed = self.fed + data
        if self.fed is not None and PyBytes_GET_SIZE(self.fed) > MAX_LEARNED_BYTES:
            self.fed = None
        self.data = None
        self.is_dirty = True
        self.parse(data)
        self.begun = self.parser_head.begun + self.handed_over
        return 0

    def request_answered(self):
        """Called by the protocol when the ordinary path has answered a request."""
        self.answered += 1
        self.fed = None

    def learn(self, request):
        """Called by the protocol with each small request that the parser has read, before it is answered."""
        cdef bytes fed = self.fed
        self.fed = None
        if fed is None or self.parser_head.begun + self.handed_over != self.answered + 1:
            return
        learned = learn_head(fed, request)
        if learned is None:
            return
        self.learned, self.head, self.known = learned, learned.known, None
        self.transport = self.protocol.transport
        if self.transport.get_extra_info("sslcontext") is None:
            self.fd = self.transport.get_extra_info("socket").fileno()

    cdef bint begin(self, bytes data) except -1:
        """Starts a request if it is one for the lane, or keeps it if it has not arrived whole."""
        cdef KnownHead head = self.head
        cdef Match match = head.read(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        cdef Py_ssize_t end = head.body_at + head.body_size
        if match == UNKNOWN or self.lane.readiness.draining or self.is_paused:
            return False
        if match != COMPLETE:
            self.partial = data
            self.protocol.request_begins()
            return True
        self.started_ns = monotonic_ns()
        if not self.is_caller_known():
            return False
        self.data, self.body_at, self.body_size = data, head.body_at, head.body_size
        self.request_id = data[head.id_at : head.id_at + head.id_size] if head.id_at >= 0 else None
        self.traceparent = data[head.trace_at : head.trace_at + 55] if head.trace_at >= 0 else None
        self.rate_headers = ()
        self.plan = self.find_plan()
        if self.plan is None or self.plan.read_only:
            return False
        self.caller = self.find_caller(self.plan)
        if self.caller is None or (self.plan.may_store_code and self.caller.place.without_code):
            return False
        if end < PyBytes_GET_SIZE(data):
            self.later, self.data = data[end:], data[:end]
            self.transport.pause_reading()
        if self.start():
            return self.go_on() == 0
        if self.later is not None:
            self.later = None
            self.transport.resume_reading()
        return False

    cdef bint is_caller_known(self) except -1:
        """Whether the key is known. Without one, not even a body is looked at."""
        cdef Caller known = self.known
        if known is not None and known.generation == self.lane.generation and self.started_ns * 1e-9 < known.until_s:
            return True
        return self.lane.principals.remembered(self.learned.secret) is not None

    cdef QueryPlan find_plan(self):
        """The plan of the body, whose parameters are in the lane's scalars then."""
        cdef const char *body = PyBytes_AS_STRING(self.data) + self.body_at
        if self.plan is not None and self.plan.frame.holds(body, self.body_size, self.lane.scalars):
            return self.plan
        return self.lane.plans.find(body, self.body_size)

    cdef Caller find_caller(self, QueryPlan plan):
        """The caller; None if the ordinary path must look something up."""
        cdef Caller known = self.known
        if plan.database is not None and plan.database != self.learned.database:
            return self.lane.find_caller(self.learned.secret, plan.database, None)
        if known is None or known.generation != self.lane.generation or self.started_ns * 1e-9 >= known.until_s:
            self.known = known = self.lane.find_caller(self.learned.secret, self.learned.database, known)
        return known

    cdef bint start(self) except -1:
        """Runs the statement, now or when there is a slot."""
        cdef WaitingQuery waiting
        cdef Caller caller = self.caller
        if caller.admission.take_free(caller.queue):
            try:
                if self.run():
                    return True
            except BaseException:
                self.abort(self.exchange)
                raise
            caller.admission.release(caller.queue, 0.0)
            return False
        if caller.has_rate_limit:
            # It would wait before it has a permit.
            return False
        waiting = WaitingQuery()
        waiting.track = self
        if not self.lane.enqueue(waiting, caller, self.started_ns * 1e-9 + self.timeout_s()):
            return False
        self.waiting = waiting
        return True

    cdef double timeout_s(self) except? -1:
        cdef double limit_s = self.caller.limits.statement_timeout_ms / 1000.0
        return limit_s if self.plan.timeout_ms is None else min(limit_s, self.plan.timeout_ms / 1000.0)

    cdef int run_waiting(self) except -1:
        """Runs the request that has waited for its slot."""
        cdef Caller caller = self.caller
        cdef const char *body = PyBytes_AS_STRING(self.data) + self.body_at
        database = self.learned.database if self.plan.database is None else self.plan.database
        if self.lane.find_caller(self.learned.secret, database, caller) is not caller:
            # The key was revoked meanwhile, or the database moved: begin again.
            self.waiting = None
            caller.admission.release(caller.queue, 0.0)
            self.feed_parser(self.data)
            return self.go_on()
        self.waiting = None
        # Other requests have used the scalars.
        if self.plan.frame.holds(body, self.body_size, self.lane.scalars) and self.run():
            return 0
        return self.hand_over_slot()

    cdef bint run(self) except -1:
        """Sends the statement, for a request that has a slot. Returns False if that is not possible."""
        cdef Lane lane = self.lane
        cdef Caller caller = self.caller
        cdef Exchange exchange = None
        cdef list idle = caller.idle
        cdef Progress progress
        if idle:
            exchange = lane.exchange_of(idle[len(idle) - 1])
        if exchange is None:
            # A connection must be opened; or the pool was given up for another one.
            self.known = None
            return False
        if (
            exchange.connection.place != caller.leader.place
            or not exchange.is_quiet()
            or not exchange.can_run(self.plan, caller, lane.scalars)
            or not self.take_permit()
        ):
            return False
        if self.request_id is None:
            self.request_id = new_request_id().encode()
        caller.pool.take_last()
        exchange.connection.unwatch()
        exchange.client, exchange.caller, exchange.plan = self, caller, self.plan
        exchange.started_ns, exchange.leased_ns = self.started_ns, monotonic_ns()
        self.exchange = exchange
        lane.begun += 1
        progress = exchange.send(lane.scalars)
        if progress != WAITING or lane.forced == AFTER_SENDING:
            self.hand_over()
        else:
            lane.sweep_soon()
        return True

    cdef bint take_permit(self) except -1:
        """Takes a permit of the organization's, if it needs one."""
        cdef Caller caller = self.caller
        if caller.has_rate_limit:
            permit = self.lane.permits.take_now(caller.principal.organization_id, caller.limits.requests_per_minute)
            if permit is None:
                return False
            self.rate_headers = rate_headers(caller.principal.tier, permit)
        return True

    cdef int on_progress(self, Exchange exchange, Progress progress) except -1:
        """Called when the statement has been answered, or must be handed over."""
        cdef bint is_ordinary = not (exchange.connection.is_unreplicated or self.lane.readiness.draining)
        if self.exchange is not exchange:
            return 0
        if progress == DONE and is_ordinary and self.lane.forced != WHEN_DONE:
            return self.finish()
        return self.hand_over()

    cdef int abort(self, Exchange exchange) except -1:
        """Gives up everything that the request holds, and its client, after a failure of the lane itself."""
        cdef Caller caller = self.caller
        cdef WaitingQuery waiting = self.waiting
        self.waiting = self.exchange = self.data = None
        if exchange is not None and exchange.client is self:
            connection = exchange.connection
            exchange.clear()
            connection.close()
            caller.pool.discard(connection, 0.0)
        elif waiting is not None and not waiting.is_served:
            self.lane.waiting.pop(waiting, None)
            caller.admission.give_up(caller.queue, waiting)
        else:
            caller.admission.release(caller.queue, 0.0)
        self.transport.abort()
        return 0

    cdef int finish(self) except -1:
        """Answers the request whose statement has committed."""
        cdef Lane lane = self.lane
        cdef Exchange exchange = self.exchange
        cdef Caller caller = self.caller
        cdef const char *request_id = PyBytes_AS_STRING(self.request_id)
        cdef Py_ssize_t id_size = PyBytes_GET_SIZE(self.request_id)
        server_state = self.protocol.server_state
        try:
            lane.answer.write(exchange, request_id, id_size, server_state.default_headers, self.more_headers())
        except ServiceError:
            # A value that has no JSON: the ordinary path finds the same, and reports it.
            return self.hand_over()
        if lane.answer.rows_bytes > caller.limits.result_bytes:
            return self.hand_over()
        self.send()
        server_state.total_requests += 1
        self.idle_since_s = monotonic_ns() * 1e-9
        self.exchange = None
        plan, connection = exchange.plan, exchange.connection
        leased_s = exchange.leased_ns * 1e-9
        lane.report.add(
            caller, request_id, id_size, NULL if self.traceparent is None else PyBytes_AS_STRING(self.traceparent) + 3,
            lane.answer.total_us, lane.answer.queue_us, lane.answer.exec_us, exchange.rows, lane.answer.command,
            lane.answer.rows_bytes,
        )
        lane.flush_soon()
        exchange.clear()
        self.data = None
        self.release(caller, plan, connection, leased_s, libpq.transaction_status(exchange.pg))
        if lane.ready:
            lane.run_ready()
        return self.go_on()

    cdef bytes more_headers(self):
        if not self.rate_headers:
            return self.learned.cors
        return b"".join([b"%b: %b\r\n" % header for header in self.rate_headers]) + self.learned.cors

    cdef int send(self) except -1:
        """Writes the answer to the socket, or has the transport do it if that is full or encrypted."""
        cdef char *start = self.lane.answer.start
        cdef Py_ssize_t size = self.lane.answer.size, sent
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

    cdef int release(
        self, Caller caller, QueryPlan plan, connection, double leased_s, int transaction_status
    ) except -1:
        """Gives the connection back to its pool, to be cleaned if the statement may have left something behind."""
        cdef bint is_still_without_code = caller.without_code and monotonic_ns() - self.started_ns < without_code_for_ns
        cdef int state = plan.state_without_code if is_still_without_code else plan.state
        self.lane.is_finishing = True
        try:
            if state <= SEQUENCES and transaction_status == libpq.TRANSACTION_IDLE:
                if state == SEQUENCES:
                    connection.must_discard_sequences = True
                caller.pool.release(connection, leased_s)
            else:
                caller.pool.release_unclean(connection, SessionState(state), leased_s)
        finally:
            self.lane.is_finishing = False
        return 0

    cdef object as_request(self):
        """The request, for the ordinary path. It owes an answer to it from now on."""
        cdef Caller caller = self.caller
        request = LaneRequest(
            self.learned.headers, self.data[self.body_at :], self.request_id, self.traceparent, self.rate_headers,
            self.started_ns * 1e-9, self.timeout_s(), caller.principal, caller.place, caller.pool,
        )
        self.is_dirty = True
        self.handed_over += 1
        self.begun += 1
        self.lane.handed_over += 1
        self.data = None
        return request

    cdef int hand_over(self) except -1:
        """Has the ordinary path go on with the statement that is under way."""
        cdef Exchange exchange = self.exchange
        request = self.as_request()
        sent = LaneExchange(
            exchange.connection, exchange.prepared, exchange.taken, exchange.plan.chunk_rows,
            exchange.leased_ns * 1e-9, exchange.sent_ns // 1000, exchange.has_read,
        )
        # From here on, the ordinary path has it.
        exchange.clear()
        self.exchange = None
        hand_over_sent(self.protocol, request, sent)
        return self.go_on()

    cdef int hand_over_slot(self) except -1:
        """Has the ordinary path go on with a request that has its slot."""
        hand_over_slot(self.protocol, self.as_request())
        return self.go_on()

    cdef int refuse(self) except -1:
        """Has the ordinary path refuse a request that has waited for too long."""
        self.leave_queue()
        refuse(self.protocol, self.as_request())
        return self.go_on()

    def leave(self):
        """The connection is lost, or the server stops: the ordinary path goes on, and knows what to do then."""
        if self.exchange is not None:
            self.hand_over()
        elif self.waiting is not None:
            self.give_up()
        elif self.partial is not None:
            data, self.partial = self.partial, None
            self.feed_parser(data)

    cdef int give_up(self) except -1:
        """Has the ordinary path begin again with a request that waits for a slot."""
        self.leave_queue()
        self.feed_parser(self.data)
        return self.go_on()

    cdef int leave_queue(self) except -1:
        cdef WaitingQuery waiting = self.waiting
        cdef Caller caller = self.caller
        self.waiting = None
        if waiting.is_served:
            self.lane.ready.remove(waiting)
            caller.admission.release(caller.queue, 0.0)
        else:
            self.lane.waiting.pop(waiting, None)
            caller.admission.give_up(caller.queue, waiting)
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
