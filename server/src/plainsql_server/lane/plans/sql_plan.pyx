# cython: language_level=3
"""What a body of POST /sql asks for, if it is one statement.

Used like `plan.pyx`. Two headers say which form the answer has, so each form has plans of its own: `of_head` finds
them. All are in the same tables, so that the route remembers no more than another one. A batch takes the ordinary path.
"""

from plainsql_server.lane.plans.frame cimport Scalars

from plainsql_server.core.errors import RequestError
from plainsql_server.http.data.neon import ENCODINGS, SQL_BODY, wanted_layout
from plainsql_server.http.data.query_body import QueryBody
from plainsql_server.http.server.requests import decode_json


class SentStatement(QueryBody, kw_only=True):
    """A statement as `QueryPlans` reads it, with the form that it asks for."""

    array_mode: bool | None = None


cdef class SqlPlans(QueryPlans):
    """The plans of the route for the Neon driver: those of one form, and those of all other forms that were met."""

    def __init__(self, Scalars scalars not None):
        QueryPlans.__init__(self, scalars)
        self.layout, self.form, self.by_layout = (False, False), b"\0", {}

    def for_headers(self, headers):
        """`of_head`, for tests."""
        return self.of_head(headers)

    cdef QueryPlans of_head(self, headers):
        cdef SqlPlans made
        layout = wanted_layout(headers)
        if layout not in self.by_layout:
            made = self.by_layout[layout] = SqlPlans(self.scalars)
            made.layout, made.form = layout, bytes(layout)
            made.framed, made.whole, made.classified = self.framed, self.whole, self.classified
        return self.by_layout[layout]

    cdef object decode(self, bytes body):
        sent = decode_json(body, SQL_BODY)
        if sent.query is None or sent.queries is not None:
            raise RequestError("malformed_request", "This isn't one statement.")
        return SentStatement(sql=sent.query, params=sent.params, array_mode=sent.array_mode)

    cdef object encoding_of(self, sent):
        raw_text, arrays = self.layout
        return ENCODINGS[raw_text, arrays if sent.array_mode is None else sent.array_mode]

    cdef bint takes_text(self) noexcept:
        return True
