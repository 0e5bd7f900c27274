# cython: language_level=3
"""The routes that the lane answers, each with its plans, callers, answers and reports; and the heads that lead to them.

A client often sends requests for several routes on one connection. Its wire remembers a head for each of them, with
what belongs to that head.
"""

from plainsql_server.http.app.authentication import secret_of


cdef class LaneRoute:
    """A route that the lane answers."""

    def __init__(self, declared, QueryPlans plans not None, Answer answer not None, Report report not None):
        self.path, self.declared = declared.path, declared
        self.plans, self.answer, self.report = plans, answer, report
        self.callers = Callers()
        self.read_secret = declared.read_secret or secret_of
        self.content_type = None if declared.contract.ignores_content_type else declared.body_type


cdef class RouteHead:
    """A head that was learned on a connection, and what it was last used for."""

    def __init__(self, learned, LaneRoute route not None):
        self.learned, self.known, self.route = learned, learned.known, route
        self.plans = route.plans.of_head(learned.headers)
