# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast lane of one HTTP connection: from a request with a known head to the bytes of its answer.

    track = Track(lane, protocol, parser_head, parse)

A request with a known head and frame (`wire.pyx` and `intake.pyx` read them), whose caller is known and for whom a
connection is free that has prepared its statements, is sent to the engine at once, and answered when the engine has
answered. Any other one is fed to the parser. What turns out to be out of the ordinary later is handed over to the
ordinary path, which goes on in the middle, with the same request id, permit, slot, connection and deadline. The lane
does nothing that the ordinary path would do again before it is certain that it keeps the request. So the permit is
taken last, unless the request has a new body, or must wait for a slot. The ordinary path takes no second one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from plainsql_server.lane.engine cimport libpq
from plainsql_server.lane.answer cimport Answer
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.engine.exchange cimport DONE, UNSENT, WAITING
from plainsql_server.lane.known_head cimport KnownHead
from plainsql_server.lane.lane cimport AFTER_SENDING, WHEN_DONE, Lane
from plainsql_server.lane.reasons cimport (
    CHANGED, CLIENT_LOST, CONNECTION, DEADLINE, ERROR, LARGE, OVERLOAD, RATE_LIMIT, STOPPING, TEST, TYPE,
)

from plainsql_server.core.errors import ServiceError
from plainsql_server.data_plane.databases import WITHOUT_CODE_FOR_S
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.sqlstate import connection_lost
from plainsql_server.engine.pool.admission_queue import waited_too_long
from plainsql_server.lane.handover import LaneExchange, begin_again, hand_over_sent, hand_over_slot, refuse
from plainsql_server.lane.plans.plan import SHORTEST_TIMEOUT_MS

cdef int SEQUENCES = int(SessionState.SEQUENCES)
cdef int64_t without_code_for_ns = <int64_t>(WITHOUT_CODE_FOR_S * 1e9)
cdef double shortest_s = SHORTEST_TIMEOUT_MS / 1000.0


cdef class WaitingQuery(Waiting):
    """The request of a track, in the admission queue."""

    cdef int run(self) except -1:
        return self.track.run_waiting()

    cdef int expire(self) except -1:
        cdef Track track = self.track
        track.reason = OVERLOAD
        track.leave_queue()
        return track.refuse(waited_too_long())

    cdef int abort(self) except -1:
        return self.track.abort(self.track.exchange)


cdef class Track(Intake):
    """The requests of one HTTP connection, one after the other."""

    cdef bint is_free(self) noexcept:
        return self.exchange is None and self.waiting is None

    cdef bint start(self, bytes data, KnownHead head) except -1:
        if self.take_in(data, head) and self.run_or_wait():
            return True
        if self.permit is not None:
            # If the parser read it, it would take another one.
            self.begin_again()
            return True
        self.plan = None
        return False

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
        if caller.queue.slots == 0:
            # The process may have dropped this pool, and uses another one for the same address.
            caller.until_s = 0.0
            return self.pass_on(CONNECTION)
        if caller.has_rate_limit and not self.take_permit(caller.principal):
            return self.pass_on(RATE_LIMIT)
        waiting.track = self
        if not self.lane.enqueue(waiting, caller, self.started_ns * 1e-9 + self.timeout_s()):
            # The ordinary path refuses it, unless there is a slot by then.
            return self.pass_on(OVERLOAD)
        self.waiting = waiting
        return True

    cdef int run_waiting(self) except -1:
        """Runs the request that has waited for its slot."""
        cdef Caller caller = self.caller
        self.waiting, self.has_slot = None, True
        if self.lane.find_caller(self.head.route, self.secret(), self.database(self.plan), caller) is not caller:
            # The key was revoked meanwhile, or the database moved.
            self.reason, self.has_slot = CHANGED, False
            caller.admission.release(caller.queue, 0.0)
            return self.begin_again()
        if self.can_still_run() and self.run():
            return 0
        return self.hand_over_slot()

    cdef bint can_still_run(self) except -1:
        """Whether a request that has waited has time for the lane, which notices a deadline late."""
        if (monotonic_ns() - self.started_ns) * 1e-9 + shortest_s > self.timeout_s():
            return self.pass_on(DEADLINE)
        return self.is_held()

    cdef bint run(self) except -1:
        """Sends the statements of a request that has a slot. Returns False if that is not possible."""
        cdef Lane lane = self.lane
        cdef Caller caller = self.caller
        cdef Exchange exchange = None
        cdef Progress progress
        cdef list idle = caller.idle
        if idle:
            exchange = lane.exchange_of(idle[len(idle) - 1])
        if exchange is None:
            # A connection must be opened; or the pool was given up for another one.
            caller.until_s = 0.0
            return self.pass_on(CONNECTION)
        if exchange.connection.place != caller.leader.place or not exchange.is_quiet():
            return self.pass_on(CONNECTION)
        if not exchange.can_run(self.plan, caller, self.state_left()):
            return self.pass_on(exchange.reason)
        if caller.has_rate_limit and not self.take_permit(caller.principal):
            # The ordinary path waits for one, or refuses the request.
            return self.pass_on(RATE_LIMIT)
        if self.request_id is None:
            self.request_id = lane.request_ids.new()
        idle.pop()
        exchange.client, exchange.caller, exchange.plan = self, caller, self.plan
        exchange.started_ns, exchange.leased_ns = self.started_ns, monotonic_ns()
        self.exchange, self.has_slot = exchange, False
        if exchange.connection.is_watched:
            exchange.connection.unwatch()
        lane.begun += 1
        progress = exchange.send()
        self.reason = exchange.reason
        if progress == UNSENT:
            self.drop_connection()
        elif progress == WAITING and lane.forced != AFTER_SENDING:
            lane.sweep_soon()
        else:
            if progress == WAITING:
                self.reason = TEST
            self.hand_over()
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
        self.waiting = self.exchange = self.data = self.plan = None
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
        cdef int state
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
        state = self.state_left()
        exchange.clear()
        self.data = self.plan = None
        self.release(caller, state, connection, leased_s, libpq.transaction_status(exchange.pg))
        if lane.ready:
            lane.run_ready()
        return self.go_on()

    cdef bytes more_headers(self):
        cdef bytes cors = self.head.learned.cors
        return cors if self.permit is None else self.permit.header_lines() + cors

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

    cdef int hand_over(self) except -1:
        """Has the ordinary path go on with what is under way."""
        cdef Exchange exchange = self.exchange
        admitted, request = self.admitted(), self.as_request()
        sent = LaneExchange(
            exchange.connection, exchange.taken, exchange.chunk_rows(), exchange.leased_ns * 1e-9, exchange.has_read,
            exchange.sent(),
        )
        # From here on, the ordinary path has it.
        exchange.clear()
        self.exchange = None
        hand_over_sent(self.protocol, request, admitted, sent)
        return self.go_on()

    cdef int hand_over_slot(self) except -1:
        """Has the ordinary path go on with a request that has its slot."""
        admitted, request = self.admitted(), self.as_request()
        self.has_slot = False
        hand_over_slot(self.protocol, request, admitted)
        return self.go_on()

    cdef int begin_again(self) except -1:
        """Has the ordinary path begin again with a request that has no slot, or none any more."""
        begin_again(self.protocol, self.as_request())
        return self.go_on()

    cdef int drop_connection(self) except -1:
        """Gives up a connection that did not take all of a request, and the request, too, if it may have committed."""
        cdef Exchange exchange = self.exchange
        connection, may_have_committed = exchange.connection, exchange.may_have_committed
        exchange.clear()
        self.exchange = None
        self.caller.pool.discard(connection, 0.0)
        if may_have_committed:
            return self.refuse(connection_lost("it broke while the fast lane sent to it"))
        return self.begin_again()

    cdef int refuse(self, error) except -1:
        """Has the ordinary path answer with an error."""
        refuse(self.protocol, self.as_request(), error)
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
