# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the fast lane of one process shares: the engine's sockets, waiting requests, and the clock of slow things.

    lane = Lane(doors, reports)

Each HTTP connection has a track on it; see `track.pyx`.

All engine sockets are in one epoll set of the lane's own, behind one reader of the event loop, so a statement needs no
change to the loop's set. One timer, which runs only while something is under way, finds what takes long and hands it to
the ordinary path, whose deadlines count from then on.
"""

import asyncio
import os

from libc.stdint cimport int64_t, uint32_t

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import ServiceError
from plainsql_server.http.app.authentication import check_scope
from plainsql_server.lane.answer cimport Answer
from plainsql_server.lane.caller cimport new_caller
from plainsql_server.lane.clocks cimport monotonic_ns
from plainsql_server.lane.engine.exchange cimport Progress
from plainsql_server.lane.learning import LearnedHeads
from plainsql_server.lane.opening import QUERY, SQL, TEXT_QUERY, TRANSACTION
from plainsql_server.lane.plans.plan cimport QueryPlans
from plainsql_server.lane.plans.sql_plan cimport SqlPlans
from plainsql_server.lane.reasons cimport SLOW, TEST, TYPE
from plainsql_server.lane.sql_answer cimport LaneSqlAnswer
from plainsql_server.lane.plans.text_plan cimport TextPlans
from plainsql_server.lane.transaction_answer cimport LaneTransactionAnswer
from plainsql_server.lane.plans.transaction_plan cimport TransactionPlans

cdef extern from "sys/epoll.h":
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int) noexcept
    int epoll_ctl(int, int, int, epoll_event *) noexcept
    int epoll_wait(int, epoll_event *, int, int) noexcept
    int EPOLLIN, EPOLLET, EPOLL_CTL_ADD, EPOLL_CLOEXEC

# What reads the bodies of each route, and what writes its answers.
cdef dict PLANS = {QUERY: QueryPlans, TEXT_QUERY: TextPlans, TRANSACTION: TransactionPlans, SQL: SqlPlans}
cdef dict ANSWERS = {QUERY: Answer, TEXT_QUERY: Answer, TRANSACTION: LaneTransactionAnswer, SQL: LaneSqlAnswer}
# After which step every statement is handed over, by the setting `fast_lane`.
cdef dict FORCED = {"on": 0, "sent": AFTER_SENDING, "arrived": AT_FIRST_ARRIVAL, "done": WHEN_DONE}
# What is not done by then is handed over. Deadlines are 100 ms at least here, so none passes unnoticed.
cdef double SLOW_S = 0.025
# How often log lines, metrics and usage are passed on, as `logs.py` does.
cdef double FLUSH_S = 0.1


cdef class Waiting:
    """A request that waits for a slot: stands in the admission queue in the place of a future."""

    def done(self):
        return self.is_served

    def cancelled(self):
        return False

    def set_result(self, _):
        """Called by the admission queue: it has a slot."""
        cdef Lane lane = self.lane
        self.is_served = True
        lane.waiting.pop(self, None)
        lane.ready.append(self)
        if not lane.is_finishing and not lane.is_scheduled:
            lane.is_scheduled = True
            lane.loop.call_soon(lane.run_all_ready)

    cdef int run(self) except -1:
        """Runs the request, which has its slot now."""
        raise NotImplementedError

    cdef int expire(self) except -1:
        """Refuses the request, which has waited for too long."""
        raise NotImplementedError

    cdef int abort(self) except -1:
        """Gives up everything that the request holds, and its client, after a failure of the lane itself."""
        raise NotImplementedError


cdef class Lane:
    """The fast lane of one process."""

    def __init__(self, doors, dict reports not None, str mode="on"):
        self.principals, self.databases, self.pools = doors.principals, doors.databases, doors.pools
        self.permits, self.readiness, self.scalars = doors.permits, doors.readiness, Scalars()
        self.request_ids = RequestIds()
        self.routes = {
            route.path: LaneRoute(route, PLANS[route.path](self.scalars), ANSWERS[route.path](), reports[route.path])
            for route in doors.routes
        }
        self.exchanges, self.ready, self.waiting = [], [], {}
        self.learned_heads, self.passed, self.handed_over = LearnedHeads(), Reasons(), Reasons()
        self.forced = FORCED[mode]
        self.loop = asyncio.get_running_loop()
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError("epoll_create1 failed")
        self.loop.add_reader(self.epoll, self.read_arrivals)
        doors.freshness.on_change(self.forget_callers)

    def close(self):
        """Reports what is left. No request may be under way."""
        self.flush()
        self.loop.remove_reader(self.epoll)
        os.close(self.epoll)

    def forget_callers(self, organization_id):
        """Called by `Freshness` with each change notification."""
        cdef LaneRoute route
        self.generation += 1
        for route in self.routes.values():
            route.callers.forget(organization_id)

    def read_arrivals(self):
        """Reads from every engine connection that has sent something."""
        cdef epoll_event[64] events
        cdef int count = epoll_wait(self.epoll, events, 64, 0)
        cdef int index
        cdef Exchange exchange
        for index in range(count):
            exchange = <Exchange>self.exchanges[events[index].data.fd]
            if exchange is not None and exchange.client is not None:
                try:
                    self.read_one(exchange)
                except Exception as error:
                    # The others must be read in any case: their arrival is not announced again.
                    self.report_failure(error)
                    self.abort(exchange)

    cdef int report_failure(self, error) except -1:
        self.loop.call_exception_handler({"message": "the fast lane failed", "exception": error})
        return 0

    cdef int read_one(self, Exchange exchange) except -1:
        cdef Progress progress
        try:
            progress = exchange.convert(TEST) if self.forced == AT_FIRST_ARRIVAL else exchange.read()
        except ServiceError:
            # The ordinary path finds the same error in the results, and reports it.
            progress = exchange.convert(TYPE)
        if progress:
            exchange.client.on_progress(exchange, progress)
        return 0

    def run_all_ready(self):
        """Called by the event loop."""
        self.is_scheduled = False
        self.run_ready()

    cdef int run_ready(self) except -1:
        """Runs the requests that have got a slot."""
        cdef Waiting waiting
        while self.ready:
            waiting = self.ready.pop(0)
            try:
                waiting.run()
            except Exception as error:
                self.report_failure(error)
                waiting.abort()
        return 0

    cdef Caller find_caller(self, LaneRoute route, bytes secret, bytes database, Caller known):
        """The caller with a secret, if both lookups are cached and valid; `known` again if nothing has changed."""
        cdef Caller caller
        found = self.principals.remembered(secret.decode())
        if found is None:
            return None
        principal, principal_until_s = found
        try:
            check_scope(principal, route.declared)
        except ServiceError:
            return None
        found = self.databases.remembered(principal, None if database is None else database.decode())
        if found is None:
            return None
        place, place_until_s = found
        pool = self.pools.for_address(place.address, principal.organization_id)
        if known is not None and known.principal is principal and known.place is place and known.pool is pool:
            caller = known
        else:
            caller = new_caller(principal, place, pool)
        pool.limit(caller.limits.concurrent_statements)
        caller.until_s, caller.generation = min(principal_until_s, place_until_s), self.generation
        return caller

    cdef Exchange exchange_of(self, connection):
        """The exchange of an engine connection."""
        cdef epoll_event event
        cdef Exchange exchange = connection.lane_exchange
        if exchange is not None:
            return exchange
        exchange = connection.lane_exchange = Exchange(connection)
        while len(self.exchanges) <= exchange.fd:
            self.exchanges.append(None)
        self.exchanges[exchange.fd] = exchange
        event.events, event.data.fd = EPOLLIN | <uint32_t>EPOLLET, exchange.fd
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, exchange.fd, &event) != 0:
            # Nothing would announce its results.
            connection.lane_exchange = self.exchanges[exchange.fd] = None
            return None
        return exchange

    cdef int enqueue(self, Waiting waiting, Caller caller, double deadline_s) except -1:
        """Lets a request wait for a slot; returns 0 if it could not start in time, so the ordinary path refuses it."""
        cdef double may_wait_s
        try:
            may_wait_s = caller.admission.enqueue(caller.queue, waiting, Deadline(deadline_s))
        except ServiceError:
            return 0
        waiting.lane, waiting.until_ns = self, monotonic_ns() + <int64_t>(may_wait_s * 1e9)
        self.waiting[waiting] = None
        self.sweep_soon()
        return 1

    cdef int sweep_soon(self) except -1:
        if not self.is_sweeping:
            self.is_sweeping = True
            self.loop.call_later(SLOW_S, self.sweep)
        return 0

    cdef int flush_soon(self) except -1:
        if not self.is_flushing:
            self.is_flushing = True
            self.loop.call_later(FLUSH_S, self.flush)
        return 0

    def flush(self):
        """Passes on what the lane has to report."""
        cdef LaneRoute route
        self.is_flushing = False
        for route in self.routes.values():
            route.report.flush()

    def sweep(self):
        """Hands over what takes long, and forgets the exchanges of closed connections."""
        cdef Exchange exchange
        cdef Waiting waiting
        cdef int64_t now_ns = monotonic_ns(), slow_ns = now_ns - <int64_t>(SLOW_S * 1e9)
        cdef int fd
        cdef bint is_busy = False
        self.is_sweeping = False
        for fd in range(len(self.exchanges)):
            exchange = <Exchange>self.exchanges[fd]
            if exchange is None:
                continue
            if exchange.client is None:
                if not exchange.connection.is_open:
                    self.exchanges[fd] = None
            elif exchange.leased_ns < slow_ns:
                self.end_slow(exchange)
            else:
                is_busy = True
        for waiting in list(self.waiting):
            if waiting.until_ns < now_ns:
                self.expire(waiting)
        if is_busy or self.waiting:
            self.sweep_soon()

    cdef int end_slow(self, Exchange exchange) except -1:
        # One that fails must not keep the others from their end.
        try:
            exchange.client.on_progress(exchange, exchange.convert(SLOW))
        except Exception as error:
            self.report_failure(error)
            self.abort(exchange)
        return 0

    cdef int abort(self, Exchange exchange) except -1:
        # Without a client, it was handed over before it failed.
        if exchange.client is not None:
            exchange.client.abort(exchange)
        return 0

    cdef int expire(self, Waiting waiting) except -1:
        try:
            waiting.expire()
        except Exception as error:
            self.report_failure(error)
            waiting.abort()
        return 0
