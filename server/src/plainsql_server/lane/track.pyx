# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast lane of one HTTP connection: from a request with a known head to the bytes of its answer.

    track = Track(lane, protocol, parser_head, parse)

A request with a known head and frame (`wire.pyx` reads them), whose caller is known and for whom a connection is free
that has prepared its statements, is sent to the engine at once, and answered when the engine has answered. Any other
one is fed to the parser. What turns out to be out of the ordinary later is handed over to the ordinary path, which goes
on in the middle, with the same request id, permit, slot, connection and deadline. The lane does nothing that the
ordinary path would do again before it is certain that it keeps the request; so the permit is taken last. A request that
waits for a slot has taken its permit before, and keeps it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from plainsql_server.lane cimport libpq
from plainsql_server.lane.answer cimport Answer
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.exchange cimport DONE, WAITING
from plainsql_server.lane.known_head cimport KnownHead
from plainsql_server.lane.lane cimport AFTER_SENDING, WHEN_DONE, Lane
from plainsql_server.lane.reasons cimport (
    BODY, CALLER, CHANGED, CLIENT_LOST, CONNECTION, DEADLINE, ERROR, LARGE, OPTIONS, OVERLOAD, RATE_LIMIT, STOPPING,
    TEST, TYPE,
)

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import new_request_id
from plainsql_server.data_plane.databases import WITHOUT_CODE_FOR_S
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.http.app.rate_limit import rate_headers
from plainsql_server.lane.handover import (
    LaneExchange, LaneRequest, begin_again, hand_over_sent, hand_over_slot, refuse,
)
from plainsql_server.lane.plan import SHORTEST_TIMEOUT_MS
from plainsql_server.lane.route cimport RouteHead

cdef int SEQUENCES = int(SessionState.SEQUENCES)
cdef int64_t without_code_for_ns = <int64_t>(WITHOUT_CODE_FOR_S * 1e9)
cdef double shortest_s = SHORTEST_TIMEOUT_MS / 1000.0


cdef class WaitingQuery(Waiting):
    """The request of a track, in the admission queue."""

    cdef int run(self) except -1:
        return self.track.run_waiting()

    cdef int expire(self) except -1:
        return self.track.refuse()

    cdef int abort(self) except -1:
        return self.track.abort(self.track.exchange)


cdef class Track(Wire):
    """The requests of one HTTP connection, one after the other."""

    cdef bint is_free(self) noexcept:
        return self.exchange is None and self.waiting is None

    cdef bint start(self, bytes data, KnownHead head) except -1:
        self.started_ns = monotonic_ns()
        if not self.is_caller_known():
            return self.pass_on(CALLER)
        self.data, self.body_at, self.body_size = data, head.body_at, head.body_size
        self.request_id = data[head.id_at : head.id_at + head.id_size] if head.id_at >= 0 else None
        self.traceparent = data[head.trace_at : head.trace_at + 55] if head.trace_at >= 0 else None
        self.has_permit, self.rate_headers = False, ()
        self.plan = self.find_plan()
        if self.plan is None:
            return self.pass_on(BODY)
        self.caller = self.find_caller(self.plan)
        if self.caller is None:
            return self.pass_on(CALLER)
        if self.plan.may_store_code and self.caller.place.without_code:
            return self.pass_on(OPTIONS)
        return self.run_or_wait()

    cdef bint is_caller_known(self) except -1:
        """Whether the key is known. Without one, not even a body is looked at."""
        cdef Caller known = self.head.caller
        if known is not None and known.generation == self.lane.generation and self.started_ns * 1e-9 < known.until_s:
            return True
        return self.lane.principals.remembered(self.head.learned.secret) is not None

    cdef QueryPlan find_plan(self):
        """The plan of the body, whose parameters are in the scalars of its steps then."""
        cdef const char *body = PyBytes_AS_STRING(self.data) + self.body_at
        cdef RouteHead head = self.head
        if head.plan is None or not head.plan.frame.holds(body, self.body_size, self.lane.scalars):
            head.plan = head.route.plans.find(body, self.body_size)
        return head.plan

    cdef Caller find_caller(self, QueryPlan plan):
        """The caller; None if the ordinary path must look something up."""
        cdef RouteHead head = self.head
        cdef Caller known = head.caller
        learned = head.learned
        if plan.database is not None and plan.database != learned.database:
            return self.lane.find_caller(head.route, learned.secret, plan.database, None)
        if known is None or known.generation != self.lane.generation or self.started_ns * 1e-9 >= known.until_s:
            head.caller = known = self.lane.find_caller(head.route, learned.secret, learned.database, known)
        return known

    cdef bint run_or_wait(self) except -1:
        """Runs the request, now or when there is a slot."""
        cdef Caller caller = self.caller
        if not caller.admission.take_free(caller.queue):
            return self.wait_for_slot()
        self.has_slot = True
        try:
            if self.run():
                return True
        except BaseException:
            self.abort(self.exchange)
            raise
        self.has_slot = False
        caller.admission.release(caller.queue, 0.0)
        return False

    cdef bint wait_for_slot(self) except -1:
        cdef WaitingQuery waiting = WaitingQuery()
        cdef Caller caller = self.caller
        if caller.pool.open_count == 0:
            # The process may have dropped this pool, and uses another one for the same address.
            self.head.caller = None
            return self.pass_on(CONNECTION)
        if not self.take_permit():
            # The ordinary path waits for one, or refuses the request.
            return self.pass_on(RATE_LIMIT)
        waiting.track = self
        if self.lane.enqueue(waiting, caller, self.started_ns * 1e-9 + self.timeout_s()):
            self.waiting = waiting
            return True
        # The ordinary path refuses it, unless there is a slot by then.
        self.reason = OVERLOAD
        if not self.has_permit:
            return False
        self.begin_again()
        return True

    cdef double timeout_s(self) except? -1:
        cdef double limit_s = self.plan.limit_ms(self.caller.limits) / 1000.0
        return limit_s if self.plan.timeout_ms is None else min(limit_s, self.plan.timeout_ms / 1000.0)

    cdef int run_waiting(self) except -1:
        """Runs the request that has waited for its slot."""
        cdef Caller caller = self.caller
        self.waiting, self.has_slot = None, True
        learned = self.head.learned
        database = learned.database if self.plan.database is None else self.plan.database
        if self.lane.find_caller(self.head.route, learned.secret, database, caller) is not caller:
            # The key was revoked meanwhile, or the database moved.
            self.reason, self.has_slot = CHANGED, False
            caller.admission.release(caller.queue, 0.0)
            return self.begin_again()
        if self.can_still_run() and self.run():
            return 0
        return self.hand_over_slot()

    cdef bint can_still_run(self) except -1:
        """Whether a request that has waited has time for the lane, which notices a deadline late."""
        cdef const char *body = PyBytes_AS_STRING(self.data) + self.body_at
        if (monotonic_ns() - self.started_ns) * 1e-9 + shortest_s > self.timeout_s():
            return self.pass_on(DEADLINE)
        # Other requests have used the scalars.
        return self.plan.frame.holds(body, self.body_size, self.lane.scalars)

    cdef bint run(self) except -1:
        """Sends the statements of a request that has a slot. Returns False if that is not possible."""
        cdef Lane lane = self.lane
        cdef Caller caller = self.caller
        cdef Exchange exchange = None
        cdef list idle = caller.idle
        if idle:
            exchange = lane.exchange_of(idle[len(idle) - 1])
        if exchange is None:
            # A connection must be opened; or the pool was given up for another one.
            self.head.caller = None
            return self.pass_on(CONNECTION)
        if exchange.connection.place != caller.leader.place or not exchange.is_quiet():
            return self.pass_on(CONNECTION)
        if not exchange.can_run(self.plan, caller, self.state_left()):
            return self.pass_on(exchange.reason)
        if not self.take_permit():
            return self.pass_on(RATE_LIMIT)
        if self.request_id is None:
            self.request_id = new_request_id().encode()
        caller.pool.take_last()
        exchange.client, exchange.caller, exchange.plan = self, caller, self.plan
        exchange.started_ns, exchange.leased_ns = self.started_ns, monotonic_ns()
        self.exchange, self.has_slot = exchange, False
        exchange.connection.unwatch()
        lane.begun += 1
        if exchange.send() != WAITING:
            self.reason = exchange.reason
            self.hand_over()
        elif lane.forced == AFTER_SENDING:
            self.reason = TEST
            self.hand_over()
        else:
            lane.sweep_soon()
        return True

    cdef bint take_permit(self) except -1:
        """Takes a permit of the organization's, if it needs one and has none."""
        cdef Caller caller = self.caller
        if caller.has_rate_limit and not self.has_permit:
            permit = self.lane.permits.take_now(caller.principal.organization_id, caller.limits.requests_per_minute)
            if permit is None:
                return False
            self.has_permit, self.rate_headers = True, rate_headers(caller.principal.tier, permit)
        return True

    cdef int state_left(self) noexcept:
        """The session state that the request may leave behind, if it ends now. See `StatementJob.session_state`."""
        cdef bint is_quick = monotonic_ns() - self.started_ns < without_code_for_ns
        return self.plan.state_without_code if self.caller.without_code and is_quick else self.plan.state

    cdef int on_progress(self, Exchange exchange, Progress progress) except -1:
        """Called when everything has been answered, or must be handed over."""
        if self.exchange is not exchange:
            return 0
        self.reason = exchange.reason
        if progress == DONE:
            if exchange.connection.is_unreplicated:
                self.reason = ERROR
            elif self.lane.readiness.draining:
                self.reason = STOPPING
            elif self.lane.forced == WHEN_DONE:
                self.reason = TEST
            else:
                return self.finish()
        return self.hand_over()

    cdef int abort(self, Exchange exchange) except -1:
        """Gives up everything that the request holds, and its client, after a failure of the lane itself."""
        cdef Caller caller = self.caller
        cdef WaitingQuery waiting = self.waiting
        cdef bint has_slot = self.has_slot
        self.waiting = self.exchange = self.data = None
        self.has_slot = False
        if exchange is not None and exchange.client is self:
            connection = exchange.connection
            exchange.clear()
            connection.close()
            caller.pool.discard(connection, 0.0)
        elif waiting is not None and not waiting.is_served:
            self.lane.waiting.pop(waiting, None)
            caller.admission.give_up(caller.queue, waiting)
        elif has_slot or waiting is not None:
            caller.admission.release(caller.queue, 0.0)
        self.transport.abort()
        return 0

    cdef int finish(self) except -1:
        """Answers the request, which has committed."""
        cdef Lane lane = self.lane
        cdef Answer answer = self.head.route.answer
        cdef Exchange exchange = self.exchange
        cdef Caller caller = self.caller
        cdef const char *request_id = PyBytes_AS_STRING(self.request_id)
        cdef Py_ssize_t id_size = PyBytes_GET_SIZE(self.request_id)
        server_state = self.protocol.server_state
        try:
            answer.write(exchange, request_id, id_size, server_state.default_headers, self.more_headers())
        except ServiceError:
            # A value that has no JSON: the ordinary path finds the same, and reports it.
            self.reason = TYPE
            return self.hand_over()
        if answer.rows_bytes > caller.limits.result_bytes:
            self.reason = LARGE
            return self.hand_over()
        self.send(answer.start, answer.size)
        server_state.total_requests += 1
        self.idle_since_s = monotonic_ns() * 1e-9
        self.exchange = None
        connection, leased_s = exchange.connection, exchange.leased_ns * 1e-9
        self.head.route.report.add(
            caller, request_id, id_size, NULL if self.traceparent is None else PyBytes_AS_STRING(self.traceparent) + 3,
            answer.total_us, answer.queue_us, answer.exec_us, exchange.rows, answer.command, answer.rows_bytes,
        )
        lane.flush_soon()
        exchange.clear()
        self.data = None
        self.release(caller, self.state_left(), connection, leased_s, libpq.transaction_status(exchange.pg))
        if lane.ready:
            lane.run_ready()
        return self.go_on()

    cdef bytes more_headers(self):
        cdef bytes cors = self.head.learned.cors
        if not self.rate_headers:
            return cors
        return b"".join([b"%b: %b\r\n" % header for header in self.rate_headers]) + cors

    cdef int release(self, Caller caller, int state, connection, double leased_s, int transaction_status) except -1:
        """Gives the connection back to its pool, to be cleaned if the request may have left something behind."""
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
            self.head.route.path, self.head.learned.headers, self.data[self.body_at :], self.request_id,
            self.traceparent, self.has_permit, self.rate_headers, self.started_ns * 1e-9, self.timeout_s(),
            caller.principal, caller.place, caller.pool,
        )
        self.is_dirty = True
        self.handed_over += 1
        self.begun += 1
        self.lane.handed_over.counts[<int>self.reason] += 1
        self.data = None
        return request

    cdef int hand_over(self) except -1:
        """Has the ordinary path go on with what is under way."""
        cdef Exchange exchange = self.exchange
        request = self.as_request()
        sent = LaneExchange(
            exchange.connection, exchange.taken, exchange.chunk_rows(), exchange.leased_ns * 1e-9, exchange.has_read,
            exchange.sent(),
        )
        # From here on, the ordinary path has it.
        exchange.clear()
        self.exchange = None
        hand_over_sent(self.protocol, request, sent)
        return self.go_on()

    cdef int hand_over_slot(self) except -1:
        """Has the ordinary path go on with a request that has its slot."""
        request = self.as_request()
        self.has_slot = False
        hand_over_slot(self.protocol, request)
        return self.go_on()

    cdef int begin_again(self) except -1:
        """Has the ordinary path begin again with a request that waits, or has waited for a slot and given it back."""
        begin_again(self.protocol, self.as_request())
        return self.go_on()

    cdef int refuse(self) except -1:
        """Has the ordinary path refuse a request that has waited for too long."""
        self.reason = OVERLOAD
        self.leave_queue()
        refuse(self.protocol, self.as_request())
        return self.go_on()

    def leave(self):
        """The server stops: the ordinary path goes on, and knows what to do then."""
        self.reason = STOPPING
        self.leave_lane()

    def close(self):
        """The connection is lost: the ordinary path goes on as above, and the lane forgets the connection."""
        self.reason = CLIENT_LOST
        self.leave_lane()
        self.let_go()

    cdef int leave_lane(self) except -1:
        if self.exchange is not None:
            self.hand_over()
        elif self.waiting is not None:
            self.leave_queue()
            self.begin_again()
        elif self.partial is not None:
            data, self.partial = self.partial, None
            self.feed_parser(data)
        return 0

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
