# cython: language_level=3
"""What a body of POST /query asks for: the statement that it is.

Used like `plan.pyx`. Such a request has no parameters, and its options are in the query string. The lane takes those
without one.
"""

from plainsql_server.http.data.query_body import QueryBody
from plainsql_server.http.server.requests import text_of


cdef class TextPlans(QueryPlans):
    """The plans of the route that takes a statement as text, by the statements."""

    cdef object decode(self, bytes body):
        return QueryBody(sql=text_of(body))
